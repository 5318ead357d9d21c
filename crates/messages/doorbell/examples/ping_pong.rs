//! Two threads send a message back and forth.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use doorbell::{Config, Device, Options};

const ROUNDS: u64 = 1000;
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let options = Options::default().config(Config::default().window(1).depth(4).max_message(64));
    let listener = Device::open()?.listen("127.0.0.1:0", options.clone())?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let mut connection = listener.accept(SOON).expect("a client");
        for _ in 0..ROUNDS {
            let ball = connection.receive().expect("a ball");
            connection.send(&ball).expect("a client that plays");
        }
        connection.finish()
    });

    let mut connection = Device::open()?.connect(address, options, SOON)?;
    for round in 0..ROUNDS {
        connection.send(&round.to_be_bytes())?;
        assert_eq!(*connection.receive()?, round.to_be_bytes());
    }
    connection.finish()?;
    server.join().expect("a server that does not panic")?;
    writeln!(out, "{ROUNDS} round trips of 8 B")?;
    Ok(())
}
