//! One server adds the numbers that many clients send, with a thread per client.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use doorbell::exchange::send_receive::Connection;
use doorbell::{Blocking, ConnectionError, Device, Options};

const CLIENTS: u64 = 8;
const NUMBERS: u64 = 100;
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let listener = Device::open()?.listen("127.0.0.1:0", Options::default())?;
    let address = listener.local_addr()?;
    let device = Device::open()?; // all clients share this device
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let device = device.clone();
            std::thread::spawn(move || {
                let mut connection = device.connect(address, Options::default(), SOON).expect("a server");
                for number in 0..NUMBERS {
                    connection.send(&(client * NUMBERS + number).to_be_bytes()).expect("a server that listens");
                }
                let sum = connection.receive().expect("the sum").to_vec();
                connection.finish().expect("a server that closes too");
                sum
            })
        })
        .collect();

    let servers: Vec<_> = (0..CLIENTS)
        .map(|_| listener.accept(SOON).map(|connection| std::thread::spawn(move || serve(connection))))
        .collect::<Result<_, _>>()?;
    for server in servers {
        server.join().expect("a server that does not panic")?;
    }
    for (number, client) in clients.into_iter().enumerate() {
        let sum = client.join().expect("a client that does not panic");
        writeln!(out, "client {number}: {}", u64::from_be_bytes(sum.as_slice().try_into()?))?;
    }
    Ok(())
}

/// Receives all numbers of a client and answers with their sum.
fn serve(mut connection: Blocking<Connection>) -> Result<(), ConnectionError> {
    let mut sum = 0;
    for _ in 0..NUMBERS {
        let message = connection.receive()?;
        sum += message.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    }
    connection.send(&sum.to_be_bytes())?;
    connection.finish()
}
