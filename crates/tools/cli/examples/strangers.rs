//! Measures the time of an honest client beside strangers, and the time in which a middlebox serves 1,000 clients that
//! connect at once.
//!
//! `cargo run --release -p doorbell-cli --example strangers -- target/release/doorbell`

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell::Device;
use doorbell::verbs::{Access, QpCapacities};
use doorbell_exchange::setup::{self, EndpointDescription, READY};
use doorbell_study::session::{Client, Introduction};
use doorbell_wire::{PathMtu, Psn, Qpn};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const MEETINGS: usize = 200;
const STAYING: usize = 128;
const CLIENTS: usize = 1000;
const SOON: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error + Send + Sync>;

/// A running command. Dropping this handle ends the command.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // fails if the command has ended already
        let _ = self.0.wait();
    }
}

/// Starts the command. Returns the text after `before` on its error output, up to a blank.
fn start(program: &str, arguments: &[&str], before: &str) -> Result<(Running, String), Failure> {
    let mut child = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().ok_or("no error output")?).lines();
    let running = Running(child);
    let told = lines.by_ref().map_while(Result::ok).find_map(|line| {
        line.split_once(before).and_then(|(_, behind)| behind.split_whitespace().next().map(str::to_owned))
    });
    std::thread::spawn(move || lines.for_each(drop));
    Ok((running, told.ok_or_else(|| format!("{program} did not say {before:?}"))?))
}

/// Returns the median time of a client that shows its token and is served.
fn meet(address: &str, token: &str) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for _ in 0..MEETINGS {
        let begun = Instant::now();
        let introduction = Introduction { token: Some(token.parse()?), ..Introduction::default() };
        Client::meet(TcpStream::connect(address)?, introduction)?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[MEETINGS / 2])
}

fn beside_strangers(doorbell: &str) -> Result<(), Failure> {
    let token = "a secret";
    let arguments = ["doctor", "-d", "doorbell0", "--listen", "127.0.0.1:0", "--token", token];
    let (_host, address) = start(doorbell, &arguments, "waiting for a client on ")?;
    meet(&address, token)?;
    let quiet = meet(&address, token)?;
    let greeting = setup::hello(&[]);
    let kinds: [&[u8]; 4] = [b"", &[b'x'; 63 << 10], b"half a line", &greeting];
    let mut staying = Vec::new();
    for number in 0..STAYING {
        let mut stranger = TcpStream::connect(&address)?;
        let _ = stranger.write_all(kinds[number % kinds.len()]); // fails if the stranger was refused meanwhile
        staying.push(stranger);
    }
    let beside_staying = meet(&address, token)?;
    let is_over = AtomicBool::new(false);
    let beside_flood = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for said in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"", &greeting] {
                    let _ = TcpStream::connect(&address).map(|mut stranger| stranger.write_all(said));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let time = meet(&address, token);
        is_over.store(true, Ordering::Relaxed);
        time
    })?;
    let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
    println!("honest client, median of {MEETINGS} meetings:");
    for (name, time) in [("quiet", quiet), ("beside 128 that stay", beside_staying), ("and a flood", beside_flood)] {
        println!("  {name:<22} {:>9.1} us, ratio {:.2}", us(time), us(time) / us(quiet));
    }
    Ok(())
}

/// Starts a memory node that serves one box.
fn node() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || -> Result<(), Failure> {
        let device = Device::open()?;
        let memory = device.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let capacities =
            QpCapacities { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (mut stream, _) = listener.accept()?;
        let _pair = device.queue_pair(&stream, Some(&memory), capacities, SOON)?;
        stream.set_read_timeout(None)?;
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    });
    Ok(address)
}

fn at_once(doorbell: &str) -> Result<(), Failure> {
    let clients = CLIENTS.to_string();
    let arguments = ["steer", &node()?, "-p", "0", "--clients", &clients];
    let (_box, address) = start(doorbell, &arguments, "serving clients at ")?;
    let begun = Instant::now();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let address = address.clone();
            std::thread::Builder::new().stack_size(128 << 10).spawn(
                move || -> Result<(TcpStream, Duration), Failure> {
                    let mut stream = TcpStream::connect(address)?;
                    let gid = Ipv4Addr::new(127, 1, (number / 250) as u8, (number % 250) as u8 + 1).to_ipv6_mapped();
                    let own = EndpointDescription::one_sided(gid, Qpn::new(7), Psn::new(1), PathMtu::Mtu4096, 4791);
                    setup::exchange(&stream, &[own], SOON)?;
                    stream.write_all(&[READY])?;
                    stream.read_exact(&mut [0])?;
                    Ok((stream, begun.elapsed()))
                },
            )
        })
        .collect::<Result<_, _>>()?;
    let ended: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    if let Some(error) = ended.iter().flatten().find_map(|end| end.as_ref().err()) {
        println!("the first error of a client: {error}");
    }
    let connected: Vec<_> = ended.iter().flatten().flatten().collect();
    let last = connected.iter().map(|(_, time)| *time).max().unwrap_or_default();
    println!(
        "{} of {CLIENTS} clients connected with a middlebox, the last after {:.3} s",
        connected.len(),
        last.as_secs_f64()
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let doorbell = std::env::args().nth(1).ok_or("the path of doorbell is missing")?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    beside_strangers(&doorbell)?;
    at_once(&doorbell)
}
