//! A test of application code under packet loss: a counter must count each message while the network drops, duplicates
//! and reorders packets. The seed decides which packets are affected, so a failing run can be repeated.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use doorbell::{Blocking, ConnectionError, Device, MessageConnection, Options, Received};

const MESSAGES: u64 = 500;
const SOON: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    for seed in 1..=3 {
        let faults = format!("drop=0.02,duplicate=0.01,reorder=0.02,seed={seed}").parse()?;
        let device = Device::builder().faults(faults).open()?;
        let listener = device.listen("127.0.0.1:0", Options::default())?;
        let address = listener.local_addr()?;
        let sender = std::thread::spawn(move || -> Result<(), ConnectionError> {
            let device = Device::open().expect("a device");
            let mut connection = device.connect(address, Options::default(), SOON).expect("a listener");
            for number in 1..=MESSAGES {
                connection.send(&number.to_be_bytes())?;
            }
            connection.finish()
        });
        let mut connection = listener.accept(SOON)?;
        let counted = count(&mut connection).map_err(|error| format!("seed {seed}: {error}"))?;
        connection.finish()?;
        sender.join().expect("a sender that does not panic")?;
        writeln!(out, "seed {seed}: {counted} messages, in order")?;
    }
    Ok(())
}

/// Counts messages until the peer closes, and checks that each number arrives once and in order. This function is the
/// application code under test.
fn count<C: MessageConnection>(connection: &mut Blocking<C>) -> Result<u64, Box<dyn Error>> {
    let mut counted = 0;
    loop {
        match connection.receive() {
            Ok(message) if message.to_vec() == (counted + 1_u64).to_be_bytes() => counted += 1,
            Ok(message) => return Err(format!("{:?} came after {counted}", message.to_vec()).into()),
            Err(ConnectionError::PeerClosed) => return Ok(counted),
            Err(error) => return Err(error.into()),
        }
    }
}
