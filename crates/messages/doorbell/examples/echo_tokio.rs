//! An echo server on tokio with 100 connections. The server and all clients run in one runtime, on two devices.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use doorbell::{Config, Device, Options};

const CONNECTIONS: u32 = 100;
const SOON: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let echoed = runtime.block_on(serve_and_ask())?;
    writeln!(out, "{echoed} connections, each message came back")?;
    Ok(())
}

async fn serve_and_ask() -> Result<u32, Box<dyn Error>> {
    // The example has many connections, so each connection has few and small buffers.
    let options = Options::default().config(Config::default().window(4).depth(4).max_message(256));
    let listener = Device::open()?.on_tokio()?.listen("127.0.0.1:0", options.clone()).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        for _ in 0..CONNECTIONS {
            let mut connection = listener.accept(SOON).await.expect("a client");
            tokio::spawn(async move {
                while let Ok(message) = connection.receive().await {
                    connection.send(&message).await.expect("a client that waits for the echo");
                }
                connection.finish().await
            });
        }
    });

    let device = Device::open()?.on_tokio()?;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CONNECTIONS {
        let (device, options) = (device.clone(), options.clone());
        clients.spawn(async move {
            let mut connection = device.connect(address, options, SOON).await.expect("a server");
            let question = format!("message of client {number}");
            connection.send(question.as_bytes()).await.expect("a connected server");
            let answer = connection.receive().await.expect("an answer");
            assert_eq!(*answer, *question.as_bytes());
            connection.finish().await.expect("a server that closes too");
        });
    }
    let mut echoed = 0;
    while let Some(client) = clients.join_next().await {
        client?;
        echoed += 1;
    }
    server.await?;
    Ok(echoed)
}
