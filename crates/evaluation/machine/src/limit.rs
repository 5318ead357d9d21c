//! Limits of this kernel: rate and round-trip time of plain datagrams, without an RNIC.
//!
//! A figure of Doorbell means little without the limit of its machine, measured in the same minute. [`measure`]
//! therefore lets two *processes* exchange datagrams through the sockets, runs and buffers of a real link, without RNIC
//! work. The results are the datagrams per second that arrive, and the time of a round trip. Then [`measure`] sends the
//! same packets through memory that both processes share. Finally it measures memory itself: round trips of a cache
//! line, and copies.
//!
//! The second process runs [`child_main`]. The two processes exchange lines of text. The second process first prints
//! `address A`. Then the second process answers commands on its standard input, as the table shows.
//!
//! | command | effect | answer |
//! |---|---|---|
//! | `rate N` | counts datagrams of N bytes until a stop | `ready`, then `received D T` (datagrams, ns) |
//! | `echo spin`, `echo block` | sends each datagram back until a stop | `ready`, then `stopped` |
//! | `quit` | ends | none |
//!
//! A stop is a datagram of one byte. A stop may be lost, so the first process sends stops until the second process
//! answers.

mod end;
mod memory;

use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::udp::{DEFAULT_HOP_LIMIT, DEFAULT_TRAFFIC_CLASS};
use doorbell_rnic::{EngineId, MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, TransmitBatch, TransmitInfo};
use doorbell_wire::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN, Opcode, Qpn, ROCE_UDP_PORT, UDP_LEN};

use end::End;
pub use memory::{CopyResult, MemoryLimit};

/// Bytes of a stop, which is the datagram that ends a measurement.
const STOP_BYTES: usize = 1;

/// Maximum time without a datagram or an answer. After that time a measurement fails.
const PATIENCE: Duration = Duration::from_secs(5);

/// Number of system calls between two reads of the clock.
const CALLS_PER_CLOCK: u32 = 64;

/// Options of a measurement of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// UDP port of both processes.
    pub port: u16,
    /// UDP payload bytes of the datagrams whose rate is measured.
    pub payload_bytes: Vec<usize>,
    /// Duration of each repetition.
    pub repetition: Duration,
    /// Number of repetitions. The result is their median.
    pub repetitions: usize,
    /// UDP payload bytes of the ping-pong's datagram.
    pub ping_pong_bytes: usize,
    /// Number of round trips of the spinning ping-pong. The sleeping ping-pong has a tenth of them.
    pub ping_pongs: usize,
}

impl Default for LimitOptions {
    /// Returns options with datagram sizes of RoCE v2: a SEND of 16 bytes, and a full packet of path MTU 4096.
    fn default() -> Self {
        Self {
            port: ROCE_UDP_PORT,
            payload_bytes: vec![36, 4112],
            repetition: Duration::from_millis(300),
            repetitions: 5,
            ping_pong_bytes: 36,
            ping_pongs: 20_000,
        }
    }
}

/// Limits of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitReport {
    /// Datagrams over loopback.
    pub udp: LinkLimit,
    /// Bytes of the receive buffer that the kernel granted to each end.
    pub receive_buffer_bytes: usize,
    /// Packets of the same sizes through memory that both processes share, or the reason why the processes cannot share
    /// memory.
    pub shared_memory: Result<LinkLimit, String>,
    /// Limits of memory itself.
    pub memory: MemoryLimit,
}

/// Limits of one link between two processes.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkLimit {
    /// Median of half a round trip in nanoseconds, with both ends spinning.
    pub ping_pong_ns: u64,
    /// Median of half a round trip in nanoseconds, with both ends sleeping in the kernel.
    pub ping_pong_blocking_ns: u64,
    /// Rate for each size of [`LimitOptions::payload_bytes`].
    pub results: Vec<RateResult>,
}

/// Rate of datagrams of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct RateResult {
    /// Bytes of the Ethernet frame of one datagram, without the FCS.
    pub frame_bytes: usize,
    /// Datagrams received per second, as the median of all repetitions.
    pub datagrams_per_s: f64,
    /// Datagrams per second in the slowest and in the fastest repetition.
    pub datagrams_per_s_spread: (f64, f64),
    /// Bytes of frames received per second.
    pub bytes_per_s: f64,
    /// Number of datagrams in one segmented send.
    pub segments: usize,
    /// Share of the sent datagrams that were received, over all repetitions.
    pub received_share: f64,
}

/// Starts the second process, which must run [`child_main`], and measures the limits.
///
/// `child_command` returns the command that starts a second process in a given mode. `measure` connects standard input
/// and output of that process to pipes. Each second process has ended before `measure` returns.
///
/// # Errors
///
/// The port cannot be bound, the second process cannot be started, its answer is unexpected, or it is silent for too
/// long. If the processes cannot share memory, `measure` succeeds and the report contains the reason.
pub fn measure(child_command: impl Fn(&str) -> Command, options: &LimitOptions) -> io::Result<LimitReport> {
    let mut end = End::open(options.port, false)?;
    let receive_buffer_bytes = end.udp().receive_buffer_bytes();
    let udp = measure_link(&mut end, child_command(&options.port.to_string()), options)?;
    drop(end);
    let shared_memory = End::open(options.port, true)
        .and_then(|mut end| measure_link(&mut end, child_command(&format!("{}{SHARED}", options.port)), options))
        .map_err(|error| error.to_string());
    let memory = memory::measure(options.repetition, options.repetitions)?;
    Ok(LimitReport { udp, receive_buffer_bytes, shared_memory, memory })
}

fn measure_link(end: &mut End, child_command: Command, options: &LimitOptions) -> io::Result<LinkLimit> {
    let mut peer = Peer::start(child_command)?;
    let mut results = Vec::new();
    for &payload_bytes in &options.payload_bytes {
        results.push(measure_rate(end, &mut peer, payload_bytes, options)?);
    }
    let bytes = options.ping_pong_bytes;
    // A round trip with sleeping ends takes about ten times as long as a round trip with spinning ends.
    let sleeping = options.ping_pongs.div_ceil(10);
    Ok(LinkLimit {
        ping_pong_ns: measure_ping_pong(end, &mut peer, Wait::Spin, bytes, options.ping_pongs)?,
        ping_pong_blocking_ns: measure_ping_pong(end, &mut peer, Wait::Block, bytes, sleeping)?,
        results,
    })
}

/// Suffix of the mode with which the second process sends packets through shared memory.
const SHARED: &str = "/shm";

/// Runs the second process. [`measure`] passes `mode`: the UDP port in decimal, followed by `/shm` for shared memory.
///
/// # Errors
///
/// `mode` has no UDP port, the port cannot be bound, memory cannot be shared, a command is unknown, or the first
/// process is gone or silent during a measurement.
pub fn child_main(mode: &str) -> io::Result<()> {
    let (text, shared) = mode.strip_suffix(SHARED).map_or((mode, false), |port| (port, true));
    let port = text.parse().map_err(|_| {
        invalid(format!("mode {mode:?}: must be a UDP port from 1 to 65535, optionally followed by {SHARED}"))
    })?;
    let mut end = End::open(port, shared)?;
    let mut out = io::stdout().lock();
    let mut say = move |line: String| writeln!(out, "{line}").and_then(|()| out.flush());
    say(format!("address {}", end.udp().local_address()))?;
    for command in io::stdin().lock().lines() {
        let command = command?;
        // Discard late stops of the previous measurement. A late stop must not end the next measurement.
        while end.receive(0)?.packets > 0 {}
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["rate", bytes] => {
                let bytes = bytes.parse().map_err(|_| invalid(format!("bad size in {command:?}")))?;
                say("ready".into())?;
                let served = serve_rate(&mut end, bytes)?;
                say(format!("received {} {}", served.datagrams, served.elapsed.as_nanos()))?;
            }
            ["echo", how] => {
                let wait = if how == "block" { Wait::Block } else { Wait::Spin };
                say("ready".into())?;
                serve_echo(&mut end, wait)?;
                say("stopped".into())?;
            }
            ["quit"] => break,
            _ => return Err(invalid(format!("unknown command {command:?}"))),
        }
    }
    Ok(())
}

/// Way in which an end waits for the next datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// The end polls.
    Spin,
    /// The end sleeps in the kernel.
    Block,
}

/// Counters of the receiving end of a rate measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Served {
    /// Datagrams of the requested size.
    datagrams: u64,
    /// Time from the first datagram to the last.
    elapsed: Duration,
}

/// Counts datagrams of `payload_bytes` until a stop arrives.
fn serve_rate(end: &mut End, payload_bytes: usize) -> io::Result<Served> {
    let mut counted = 0;
    let mut first = None;
    let mut last = Instant::now();
    loop {
        let arrived = end.receive(payload_bytes)?;
        if arrived.datagrams > 0 {
            last = Instant::now();
            // The clock starts at the first poll that finds datagrams. Datagrams of that poll were sent earlier, so
            // they do not count.
            match first {
                None => first = Some(last),
                Some(_) => counted += arrived.datagrams,
            }
        } else if last.elapsed() > PATIENCE {
            // Datagrams of other sizes do not reset the timeout, since the other end of this measurement does not send
            // them.
            return Err(silence());
        }
        if arrived.stopped {
            return Ok(Served { datagrams: counted, elapsed: first.map_or(Duration::ZERO, |first| last - first) });
        }
    }
}

/// Sends full runs of datagrams of `payload_bytes` for `duration`, as fast as the link accepts them.
fn run_rate(end: &mut End, peer: IpAddr, payload_bytes: usize, duration: Duration) -> io::Result<()> {
    let batch = run_of(peer, payload_bytes, segments_of(payload_bytes));
    let start = Instant::now();
    while start.elapsed() < duration {
        for _ in 0..CALLS_PER_CLOCK {
            end.send(&batch)?;
        }
    }
    Ok(())
}

/// Sends each datagram back until a stop arrives.
fn serve_echo(end: &mut End, wait: Wait) -> io::Result<()> {
    let mut reply: Option<TransmitBatch> = None;
    let mut heard = Instant::now();
    loop {
        if wait == Wait::Block && !end.sleep(PATIENCE)? {
            return Err(silence());
        }
        let arrived = end.receive(0)?;
        match arrived.last {
            _ if arrived.stopped => return Ok(()),
            Some((peer, bytes)) => {
                heard = Instant::now();
                end.send(reply.get_or_insert_with(|| run_of(peer, bytes, 1)))?;
            }
            None if heard.elapsed() > PATIENCE => return Err(silence()),
            None => {}
        }
    }
}

/// Sends one datagram back and forth `count` times. Returns half of each round-trip time in nanoseconds, sorted.
fn run_ping_pong(end: &mut End, peer: IpAddr, wait: Wait, payload_bytes: usize, count: usize) -> io::Result<Vec<u64>> {
    let batch = run_of(peer, payload_bytes, 1);
    let mut halves = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        end.send(&batch)?;
        loop {
            if wait == Wait::Block && !end.sleep(PATIENCE)? {
                return Err(silence());
            }
            if end.receive(0)?.packets > 0 {
                break;
            }
            if start.elapsed() > PATIENCE {
                return Err(silence());
            }
        }
        halves.push(start.elapsed().as_nanos() as u64 / 2);
    }
    halves.sort_unstable();
    Ok(halves)
}

fn measure_rate(
    end: &mut End,
    peer: &mut Peer,
    payload_bytes: usize,
    options: &LimitOptions,
) -> io::Result<RateResult> {
    let (mut rates, mut sent, mut received) = (Vec::new(), 0, 0);
    for _ in 0..options.repetitions.max(1) {
        peer.command(&format!("rate {payload_bytes}"), "ready")?;
        let before = end.sent();
        run_rate(end, peer.address, payload_bytes, options.repetition)?;
        let answer = peer.stop(end)?;
        // Datagrams that waited for room in shared memory were sent before the stop arrived. The few stops count too.
        sent += end.sent() - before;
        let (datagrams, elapsed_ns) = match answer.split_whitespace().collect::<Vec<_>>()[..] {
            ["received", datagrams, elapsed_ns] => (datagrams.parse(), elapsed_ns.parse()),
            _ => return Err(unexpected("received", &answer)),
        };
        let (Ok(datagrams), Ok(elapsed_ns)) = (datagrams, elapsed_ns) else {
            return Err(unexpected("received and two numbers", &answer));
        };
        let (datagrams, elapsed_ns): (u64, u64) = (datagrams, elapsed_ns);
        received += datagrams;
        rates.push(datagrams as f64 * 1e9 / elapsed_ns.max(1) as f64);
    }
    rates.sort_unstable_by(f64::total_cmp);
    let ip = if peer.address.is_ipv4() { IPV4_LEN } else { IPV6_LEN };
    let frame_bytes = ETHERNET_LEN + ip + UDP_LEN + payload_bytes;
    let datagrams_per_s = rates[rates.len() / 2];
    Ok(RateResult {
        frame_bytes,
        datagrams_per_s,
        datagrams_per_s_spread: (rates[0], rates[rates.len() - 1]),
        bytes_per_s: datagrams_per_s * frame_bytes as f64,
        segments: segments_of(payload_bytes),
        received_share: received as f64 / sent.max(1) as f64,
    })
}

fn measure_ping_pong(
    end: &mut End,
    peer: &mut Peer,
    wait: Wait,
    payload_bytes: usize,
    count: usize,
) -> io::Result<u64> {
    peer.command(if wait == Wait::Spin { "echo spin" } else { "echo block" }, "ready")?;
    let halves = run_ping_pong(end, peer.address, wait, payload_bytes, count)?;
    match peer.stop(end)?.as_str() {
        "stopped" => Ok(halves.get(halves.len() / 2).copied().unwrap_or_default()),
        answer => Err(unexpected("stopped", answer)),
    }
}

/// Returns the number of datagrams of `payload_bytes` in one segmented send.
fn segments_of(payload_bytes: usize) -> usize {
    (MAX_RUN_BYTES / payload_bytes.max(1)).clamp(1, MAX_RUN_PACKETS)
}

/// Returns a batch of one run of datagrams. The datagrams have no trailers, so no ICRC is computed.
fn run_of(peer: IpAddr, payload_bytes: usize, segments: usize) -> TransmitBatch {
    let mut batch = TransmitBatch::new(payload_bytes * segments, 0);
    let path = Path {
        engine: EngineId(0),
        destination: peer,
        traffic_class: DEFAULT_TRAFFIC_CLASS,
        hop_limit: DEFAULT_HOP_LIMIT,
    };
    let info = TransmitInfo {
        qpn: Qpn::new(0),
        opcode: Opcode::UD_SEND_ONLY,
        work_request: None,
        first: true,
        last: true,
        inline: false,
        retransmission: false,
        payload_bytes: payload_bytes as u32,
    };
    for _ in 0..segments {
        batch.push(&path, payload_bytes, info).fill(0);
    }
    batch
}

/// Handle of the first process to the second process.
struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: std::sync::mpsc::Receiver<io::Result<String>>,
    address: IpAddr,
}

impl Peer {
    fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("standard input and output are pipes");
        };
        let answers = read_lines(output);
        let mut peer = Self { child, commands, answers, address: IpAddr::from([0; 16]) };
        let greeting = peer.answer()?;
        peer.address = greeting
            .strip_prefix("address ")
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unexpected("address", &greeting))?;
        Ok(peer)
    }

    fn command(&mut self, command: &str, expected: &str) -> io::Result<()> {
        writeln!(self.commands, "{command}")?;
        match self.answer()? {
            answer if answer == expected => Ok(()),
            answer => Err(unexpected(expected, &answer)),
        }
    }

    /// Sends stops until the second process answers, and returns the answer.
    fn stop(&mut self, end: &mut End) -> io::Result<String> {
        let batch = run_of(self.address, STOP_BYTES, 1);
        let start = Instant::now();
        loop {
            end.send(&batch)?;
            match self.answers.recv_timeout(Duration::from_millis(20)) {
                Ok(answer) => return answer,
                Err(_) if start.elapsed() < PATIENCE => {}
                Err(_) => return Err(silence()),
            }
        }
    }

    fn answer(&mut self) -> io::Result<String> {
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(silence()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = writeln!(self.commands, "quit");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines in a separate thread. The caller can then wait for a line with a timeout.
fn read_lines(output: ChildStdout) -> std::sync::mpsc::Receiver<io::Result<String>> {
    let (to, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

fn silence() -> io::Error {
    let seconds = PATIENCE.as_secs();
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the other process of the measurement sent nothing for {seconds} seconds"),
    )
}

fn unexpected(expected: &str, answer: &str) -> io::Error {
    invalid(format!("the other process answered {answer:?} where {expected:?} was expected"))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
