//! A key-value table that clients read and write by one-sided operations. Each slot of the table holds a version and a
//! value. A writer makes the version odd by CAS, WRITEs the value, and makes the version even again.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use doorbell::verbs::{Access, QpCapacities, Region, SendOperation};
use doorbell::{Device, OperationError, QueuePair};

const SLOT_BYTES: u64 = 16;
const SOON: Duration = Duration::from_secs(30);
const ROOM: QpCapacities =
    QpCapacities { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let address = tcp.local_addr()?;
    let server = std::thread::spawn(move || {
        let device = Device::open().expect("a device");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let table = device.allocate(4096, access).expect("memory");
        let (mut stream, _) = tcp.accept().expect("a client");
        let _pair = device.queue_pair(&stream, Some(&table), ROOM, SOON).expect("a queue pair");
        let _ = stream.read(&mut [0]); // until the client hangs up
    });

    let stream = TcpStream::connect(address)?;
    let device = Device::open()?;
    let buffer = device.allocate(SLOT_BYTES as usize, Access::LOCAL_WRITE)?;
    let table = Client { pair: device.queue_pair(&stream, None, ROOM, SOON)?, buffer };
    for (key, value) in [(3, 300), (4, 400), (3, 301)] {
        table.put(key, value)?;
    }
    for key in [3, 4, 5] {
        let (version, value) = table.get(key)?;
        writeln!(out, "key {key}: value {value}, written {} times", version / 2)?;
    }
    drop(stream);
    server.join().expect("a server that does not panic");
    Ok(())
}

struct Client {
    pair: QueuePair,
    buffer: Region,
}

impl Client {
    fn put(&self, key: u64, value: u64) -> Result<(), OperationError> {
        let (remote_address, rkey) = (self.pair.peer.address + key * SLOT_BYTES, self.pair.peer.rkey);
        loop {
            let compare = self.get(key)?.0 & !1;
            self.run(SendOperation::CompareSwap { remote_address, rkey, compare, swap: compare + 1 }, 8)?;
            if self.buffer.load_acquire_u64(0) == compare {
                self.buffer.copy_in(0, &value.to_ne_bytes());
                self.run(SendOperation::Write { remote_address: remote_address + 8, rkey }, 8)?;
                self.buffer.copy_in(0, &(compare + 2).to_ne_bytes());
                return self.run(SendOperation::Write { remote_address, rkey }, 8);
            }
        }
    }

    fn get(&self, key: u64) -> Result<(u64, u64), OperationError> {
        let (remote_address, rkey) = (self.pair.peer.address + key * SLOT_BYTES, self.pair.peer.rkey);
        self.run(SendOperation::Read { remote_address, rkey }, SLOT_BYTES as usize)?;
        Ok((self.buffer.load_acquire_u64(0), self.buffer.load_acquire_u64(8)))
    }

    fn run(&self, operation: SendOperation, bytes: usize) -> Result<(), OperationError> {
        self.pair.perform(operation, self.buffer.sge(0, bytes))
    }
}
