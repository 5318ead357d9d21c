//! The program of the processes that `cargo xtask soak` starts:
//!
//! - `doorbell-soak serve SEED FAULT` listens until its standard input ends, and is the server of all conversations;
//! - `doorbell-soak stay SEED FAULT PORT` holds one conversation of each protocol and one conversation of one-sided
//!   operations, until its standard input ends;
//! - `doorbell-soak visit SEED FAULT PORT` holds some conversations for a short time, and then ends or kills itself.
//!
//! FAULT is a plan in the format of `--fault`, or `-` for none. Each process prints one line of names and numbers per
//! second.

mod traffic;

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use doorbell::exchange::protocols::Protocol;
use doorbell::exchange::{setup, with_connector};
use doorbell::verbs::soft::{self, Soft, SoftOptions};
use doorbell::verbs::{self, Access, QpCapacities};
use doorbell::{Config, Connector, Device};
use traffic::{Conversation, LONGEST, Messages, OWN_BYTES, OneSided, Passive, SHARED_BYTES};

/// Deadline of a set-up, so that a peer that hangs does not block this process.
const SOON: Duration = Duration::from_secs(60);
/// Time between two lines of output.
const BETWEEN_LINES: Duration = Duration::from_secs(1);
/// Value of the protocol number in a greeting that asks for one-sided operations.
const ONE_SIDED: u8 = u8::MAX;
const GREETING_BYTES: usize = 10;
/// Maximum number of messages in flight in each direction.
const WINDOW: usize = 16;
const ROOM: QpCapacities =
    QpCapacities { max_send_wr: 32, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };

type Failure = Box<dyn Error>;
/// The greeting of a client, and the conversation that was set up after the greeting.
type Arrival = (Greeting, Result<Box<dyn Conversation>, String>);

/// First bytes of a client: the kind of the conversation, the key of the client's data, and whether the client will
/// kill itself.
#[derive(Clone, Copy)]
struct Greeting {
    protocol: u8,
    will_die: bool,
    key: u64,
}

impl Greeting {
    fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[0] = self.protocol;
        bytes[1] = self.will_die.into();
        bytes[2..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    fn read(stream: &mut TcpStream) -> std::io::Result<Self> {
        let mut bytes = [0; GREETING_BYTES];
        stream.set_read_timeout(Some(SOON))?;
        stream.read_exact(&mut bytes)?;
        stream.set_read_timeout(None)?;
        let key = bytes[2..].iter().fold(0, |key, byte| key << 8 | u64::from(*byte));
        Ok(Self { protocol: bytes[0], will_die: bytes[1] != 0, key })
    }

    /// Sets up the conversation. The client and the server both call this function.
    fn meet(self, device: &Device, stream: TcpStream, is_server: bool) -> Result<Box<dyn Conversation>, Failure> {
        if self.protocol == ONE_SIDED {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            if is_server {
                let shared = device.allocate(SHARED_BYTES, access)?;
                let pair = device.queue_pair(&stream, Some(&shared), ROOM, SOON)?;
                return Ok(Box::new(Passive::new(pair, shared, stream)?));
            }
            let own = device.allocate(OWN_BYTES, Access::LOCAL_WRITE)?;
            let pair = device.queue_pair(&stream, None, ROOM, SOON)?;
            return Ok(Box::new(OneSided::new(pair, own, stream, self.key)?));
        }
        let protocol = *Protocol::ALL.get(usize::from(self.protocol)).ok_or("no such protocol")?;
        let keys = if is_server { [!self.key, self.key] } else { [self.key, !self.key] };
        with_connector!(protocol, connector => converse(&connector, device, stream, keys))
    }
}

fn converse<P: Connector>(
    connector: &P,
    device: &Device,
    mut stream: TcpStream,
    keys: [u64; 2],
) -> Result<Box<dyn Conversation>, Failure>
where
    P::Connection: Send + 'static,
{
    let config = Config::default().window(WINDOW).depth(2 * WINDOW).max_message(LONGEST);
    let endpoint = connector.endpoint(device.pd(), &config, None)?;
    let own = connector.describe(&endpoint);
    let theirs = setup::exchange(&stream, &[own], SOON)?;
    let connection = connector.connect(endpoint, &theirs[0])?;
    // Each end waits for the ready byte of the other end before it sends messages.
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(&[setup::READY])?;
    stream.read_exact(&mut [0])?;
    stream.set_read_timeout(None)?;
    Ok(Box::new(Messages::new(connection, stream, keys)?))
}

/// Conversations of a process, and the number of ended conversations by outcome.
struct Table {
    name: &'static str,
    soft: Arc<Soft>,
    running: VecDeque<(Greeting, Box<dyn Conversation>)>,
    verified: u64,
    finished: u64,
    departed: u64,
    errors: u64,
    last_line: Instant,
}

impl Table {
    fn new(name: &'static str, soft: Arc<Soft>) -> Self {
        let running = VecDeque::new();
        Self { name, soft, running, verified: 0, finished: 0, departed: 0, errors: 0, last_line: Instant::now() }
    }

    /// Does one step of each conversation. Returns whether any conversation progressed.
    fn step(&mut self, is_ending: bool) -> bool {
        let before = self.verified;
        for _ in 0..self.running.len() {
            let Some((greeting, mut conversation)) = self.running.pop_front() else { break };
            match conversation.step(is_ending) {
                Ok(step) => {
                    self.verified += step.verified;
                    match step.is_over {
                        true => self.finished += 1,
                        false => self.running.push_back((greeting, conversation)),
                    }
                }
                Err(_) if greeting.will_die => self.departed += 1,
                Err(why) => self.fail(greeting, &why),
            }
        }
        if self.last_line.elapsed() >= BETWEEN_LINES {
            self.line();
        }
        self.verified > before
    }

    fn fail(&mut self, greeting: Greeting, why: &str) {
        self.errors += 1;
        let protocol = Protocol::ALL.get(usize::from(greeting.protocol));
        let what = protocol.map_or_else(|| "one-sided".to_owned(), |protocol| format!("{protocol:?}"));
        eprintln!("{}, {what}, key {}: {why}", self.name, greeting.key);
    }

    fn line(&mut self) {
        self.last_line = Instant::now();
        give_back_free_memory();
        let objects = self.soft.objects();
        let Self { verified, finished, departed, errors, .. } = self;
        println!(
            "verified {verified} finished {finished} departed {departed} errors {errors} conversations {} qps {} cqs {} \
             regions {} pds {} destinations {} stale_keys {}",
            self.running.len(),
            objects.qps,
            objects.cqs,
            objects.regions,
            objects.pds,
            objects.destinations,
            objects.stale_keys,
        );
    }
}

/// Returns free pages of the allocator to the kernel. A peak of visitors leaves free pages between used pages. Without
/// this call, each higher peak would increase the resident memory, which would look like a leak.
fn give_back_free_memory() {
    // SAFETY: `malloc_trim` takes the locks of the allocator, as an allocation does, and only releases pages that hold
    // no allocations.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

fn open(fault: &str) -> Result<(Device, Arc<Soft>), Failure> {
    let faults = if fault == "-" { None } else { Some(fault.parse()?) };
    let soft = soft::open_provider(&SoftOptions { faults, ..SoftOptions::default() })?;
    let provider: Arc<dyn verbs::raw::Provider> = soft.clone();
    Ok((Device::of(&verbs::Device::new(provider))?, soft))
}

/// Accepts clients and sends their conversations to `out`.
fn accept(listener: &TcpListener, device: &Device, out: &Sender<Arrival>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_nodelay(true); // without this option, the set-up is only slower
        // Ignore a client that disconnects before its greeting.
        let Ok(greeting) = Greeting::read(&mut stream) else { continue };
        let met = greeting.meet(device, stream, true).map_err(|error| error.to_string());
        if out.send((greeting, met)).is_err() {
            return;
        }
    }
}

/// Returns a flag that becomes true when the standard input ends.
fn end_of_input() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_over);
    std::thread::spawn(move || {
        // A read error also counts as the end of the input.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    is_over
}

fn serve(fault: &str) -> Result<u64, Failure> {
    let (device, soft) = open(fault)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("port {}", listener.local_addr()?.port());
    let (out, arrived): (_, Receiver<Arrival>) = channel();
    std::thread::spawn(move || accept(&listener, &device, &out));
    let is_over = end_of_input();
    let mut table = Table::new("server", soft);
    let mut end = None;
    loop {
        while let Ok((greeting, met)) = arrived.try_recv() {
            match met {
                Ok(conversation) => table.running.push_back((greeting, conversation)),
                Err(_) if greeting.will_die => table.departed += 1,
                Err(why) => table.fail(greeting, &why),
            }
        }
        if !table.step(false) {
            std::thread::yield_now();
        }
        if is_over.load(Ordering::Relaxed) {
            let end = *end.get_or_insert_with(|| Instant::now() + SOON * 2);
            if table.running.is_empty() || Instant::now() > end {
                break;
            }
        }
    }
    for (greeting, _) in std::mem::take(&mut table.running) {
        table.fail(greeting, "the client is gone, but no call reported an error");
    }
    table.line();
    Ok(table.errors)
}

/// Runs a client. With `stays`, the client runs until its standard input ends, and otherwise for a random time.
fn visit(seed: u64, fault: &str, port: u16, stays: bool) -> Result<u64, Failure> {
    let name = if stays { "lasting client" } else { "visitor" };
    let (device, soft) = open(fault)?;
    let mut table = Table::new(name, soft);
    let draw = |number: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17 * number as u32) >> 8;
    let will_die = !stays && draw(1) % 2 == 0;
    let all: Vec<u8> = (0..Protocol::ALL.len() as u8).chain([ONE_SIDED]).collect();
    let wanted: Vec<u8> = match stays {
        true => [&all[..], &[ONE_SIDED; 2]].concat(),
        false => (2..4).map(|number| all[(draw(number) % all.len() as u64) as usize]).collect(),
    };
    for (number, protocol) in wanted.into_iter().enumerate() {
        let greeting = Greeting { protocol, will_die, key: seed ^ ((number as u64 + 1) << 56) };
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.write_all(&greeting.bytes())?;
        let conversation = greeting.meet(&device, stream, false)?;
        table.running.push_back((greeting, conversation));
    }
    let is_over = stays.then(end_of_input);
    let end = Instant::now() + Duration::from_millis(100 + draw(4) % 900);
    while !table.running.is_empty() {
        let is_ending = match &is_over {
            Some(is_over) => is_over.load(Ordering::Relaxed),
            None => Instant::now() >= end,
        };
        if is_ending && will_die {
            // SIGKILL simulates a crash, or a user who kills the program.
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
        }
        if !table.step(is_ending) {
            std::thread::yield_now();
        }
    }
    table.line();
    // The server never dies. If the peer of a client departed, the client therefore counts an error.
    Ok(table.errors + table.departed)
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let errors = match words[..] {
        ["serve", _, fault] => serve(fault)?,
        ["stay", seed, fault, port] => visit(seed.parse()?, fault, port.parse()?, true)?,
        ["visit", seed, fault, port] => visit(seed.parse()?, fault, port.parse()?, false)?,
        _ => return Err("usage: doorbell-soak serve SEED FAULT | stay SEED FAULT PORT | visit SEED FAULT PORT".into()),
    };
    if errors == 0 { Ok(()) } else { Err(format!("{errors} errors").into()) }
}
