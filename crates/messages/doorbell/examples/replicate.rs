//! Three readers read a file from the memory of one source, by Direct-Read. The source only announces each piece.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use doorbell::exchange::direct_read::{Acknowledge, Connection};
use doorbell::exchange::{Replication, Submit};
use doorbell::verbs::{Access, MemoryKind};
use doorbell::{Config, Device, DirectRead, MessageConnection, Options};

const READERS: usize = 3;
const FILE_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    run(&mut io::stdout())
}

/// Runs the example, and prints its output to `out`.
pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 7 % 251) as u8).collect();
    let mut file = tempfile::tempfile()?;
    file.write_all(&content)?;

    // Readers acknowledge by SEND. The signal byte after a message could acknowledge only one reader.
    let options = Options::of(DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() })
        .config(Config::default().window(4).depth(4).max_message(PIECE_BYTES));
    let device = Device::open()?;
    let listener = device.listen("127.0.0.1:0", options.clone())?;
    let address = listener.local_addr()?;
    let readers = vec![options; READERS].into_iter();
    let readers: Vec<_> = readers.map(|options| std::thread::spawn(move || copy_from(address, options))).collect();
    let mut replication = Replication::new();
    for _ in 0..READERS {
        replication.add(listener.accept(SOON)?.into_inner())?;
    }
    publish(&device, &file, &mut replication)?;
    for (number, reader) in readers.into_iter().enumerate() {
        let copy = reader.join().expect("a reader that does not panic");
        writeln!(out, "reader {number}: {} B, the same: {}", copy.len(), copy == content)?;
    }
    Ok(())
}

fn copy_from(source: SocketAddr, options: Options<DirectRead>) -> Vec<u8> {
    let mut connection = Device::open().expect("a device").connect(source, options, SOON).expect("a source");
    let mut copy = Vec::new();
    while let Ok(piece) = connection.receive() {
        copy.extend_from_slice(&piece);
    }
    copy
}

fn publish(device: &Device, file: &File, replication: &mut Replication<Connection>) -> Result<(), Box<dyn Error>> {
    let source = device.pd().allocate(FILE_BYTES, Access::REMOTE_READ, MemoryKind::File(file))?;
    let mut last = 0;
    for offset in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        last = loop {
            match replication.publish(&source, offset, PIECE_BYTES)? {
                Submit::Accepted(id) => break id,
                Submit::Full(_) => replication.poll(),
            };
        };
    }
    while replication.last_done() < last {
        replication.poll();
    }
    for number in 0..READERS {
        replication.connection_mut(number).ok_or("a reader is gone")?.close();
    }
    while (0..READERS).any(|number| replication.connection_mut(number).is_some_and(|one| !one.is_closed())) {
        replication.poll();
    }
    Ok(())
}
