//! Network namespaces for tests. A namespace has a loopback interface with chosen addresses and MTU.

use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::leave_out;

/// Number of IPv6 addresses in a namespace.
pub const ADDRESSES: u16 = 16;

/// Maximum time until the addresses of a new namespace are reachable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the IPv6 address with the number `number`, from the unique local range (RFC 4193).
pub fn address(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + number)
}

/// Runs a test in a network namespace of its own. The kernel removes the namespace when its last socket closes. Only
/// root can create a namespace. Without root, the test only prints that it is left out; with `CI=true` it fails.
///
/// # Panics
///
/// If the test panics, or if the namespace cannot be configured.
pub fn within(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        // A new namespace applies to the calling thread and to the threads that it starts.
        let done = scope.spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
            Err(why) => {
                leave_out(&format!("tests in network namespaces of their own, which only root can make: {why}"))
            }
            Ok(()) => {
                let mut commands = "link set lo up\n".to_owned();
                for number in 0..ADDRESSES {
                    commands += &format!("address add {}/128 dev lo nodad\n", address(number));
                }
                ip(&commands);
                let start = Instant::now();
                while !(0..ADDRESSES).map(address).all(is_reachable) {
                    assert!(start.elapsed() < PATIENCE, "the addresses of a new namespace are not reachable");
                    std::thread::sleep(Duration::from_millis(1));
                }
                test();
            }
        });
        if let Err(panic) = done.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Returns whether a datagram to `address` arrives. The kernel adds the routes to new addresses with a delay, and drops
/// datagrams until then.
fn is_reachable(address: Ipv6Addr) -> bool {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let own = socket.local_addr().unwrap();
    socket.send_to(&[1], own).is_ok() && socket.recv(&mut [0]).is_ok()
}

/// Configures the interfaces of this namespace. Each line of `commands` holds arguments of iproute2's `ip`.
///
/// # Panics
///
/// If `ip` is missing, or rejects a line.
pub fn ip(commands: &str) {
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("ip, of Debian's package iproute2, cannot be run: {error}"));
    ip.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success(), "ip refused one of:\n{commands}");
}
