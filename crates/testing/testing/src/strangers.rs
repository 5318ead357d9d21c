//! Strangers: peers that connect to a listener and never become clients. Each listener of Doorbell is tested beside
//! these strangers.

use std::io::{self, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of strangers of each kind that stays connected.
const OF_A_KIND: usize = 16;

/// Number of strangers that connect at the same time.
const CROWD: usize = 1000;

/// Pause between two bytes of a stranger that sends slowly.
const DRIP: Duration = Duration::from_millis(20);

/// Returns the first bytes of each kind of stranger. `greeting` is a valid beginning of the listener's protocol.
pub fn kinds(greeting: &[u8]) -> Vec<Vec<u8>> {
    vec![
        Vec::new(),                              // silent
        vec![b'x'; 63 << 10],                    // greedy
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),      // nonsense
        b"{\"rank\":1,\"ranks\":".to_vec(),      // half a line
        vec![b'0'; 5000],                        // digits
        greeting[..greeting.len() / 2].to_vec(), // half a greeting
        greeting.to_vec(),                       // greets and stays
        b"\0\0\0\0\n\n\n\n".to_vec(),
    ]
}

/// Runs an honest client of a TCP listener beside strangers that stay connected, send slowly, send too much, or connect
/// at the same time. The strangers stay until `honest` returns.
///
/// # Panics
///
/// Panics if `honest` panics, or if the listener refuses a connection.
pub fn beside(address: &str, greeting: &[u8], honest: impl FnOnce()) {
    beside_on(|| TcpStream::connect(address), greeting, honest);
}

/// Runs an honest client beside strangers like [`beside`]. Each stranger opens its connection by `connect`. On sockets
/// that keep records, each of its writes is a record.
///
/// # Panics
///
/// Panics if `honest` panics, or if the listener refuses a connection.
pub fn beside_on<S: Write + Send>(connect: impl Fn() -> io::Result<S> + Sync, greeting: &[u8], honest: impl FnOnce()) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("a process may raise its own limit");
    let (try_connect, connect) = (&connect, || connect().expect("the server listens"));
    let kinds = kinds(greeting);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut staying = Vec::new();
        for stranger in (0..OF_A_KIND).flat_map(|_| &kinds) {
            let mut stream = connect();
            // Ignore an error: the listener may have rejected the stranger before it has sent everything.
            let _ = stream.write_all(stranger);
            staying.push(stream);
        }
        let mut dripping: Vec<S> = (0..OF_A_KIND).map(|_| connect()).collect();
        let (over, kinds) = (&is_over, &kinds);
        scope.spawn(move || {
            // A stranger that was disconnected connects again.
            while !over.load(Ordering::Relaxed) {
                for stream in &mut dripping {
                    if stream.write_all(b"D").is_err() {
                        let _ = try_connect().map(|again| *stream = again);
                    }
                }
                std::thread::sleep(DRIP);
            }
        });
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for said in kinds {
                    let _ = try_connect().map(|mut stream| stream.write_all(said));
                }
                std::thread::sleep(DRIP);
            }
        });
        // Before a failure is reported, disconnect the strangers and end their threads.
        let served = catch_unwind(AssertUnwindSafe(|| {
            let _crowd: Vec<S> = (0..CROWD).map(|_| connect()).collect();
            honest();
        }));
        is_over.store(true, Ordering::Relaxed);
        drop(staying);
        if let Err(panic) = served {
            resume_unwind(panic);
        }
    });
}
