//! A network of one's own: ports and addresses that no other program of the machine has.

use nix::sched::{CloneFlags, setns, unshare};

use crate::shell::{command, run};

/// Runs a step in its own network namespace, which disappears with the last process of the step. Some programs use
/// ports that are not configurable, and another process may take a port that was free. Only root can create a
/// namespace; other users share the machine's network.
pub(crate) fn apart<T: From<Result<(), String>> + Send>(step: impl FnOnce() -> T + Send) -> T {
    apart_with(&[&["link", "set", "lo", "up"]], step)
}

/// The same with a network interface beside loopback: some programs leave that out (libfabric).
pub(crate) fn apart_with_interface<T: From<Result<(), String>> + Send>(step: impl FnOnce() -> T + Send) -> T {
    let commands: [&[&str]; 5] = [
        &["link", "set", "lo", "up"],
        &["link", "add", "doorbell-a", "type", "veth", "peer", "name", "doorbell-b"],
        &["address", "add", "192.0.2.1/24", "dev", "doorbell-a"],
        &["link", "set", "doorbell-a", "up"],
        &["link", "set", "doorbell-b", "up"],
    ];
    apart_with(&commands, step)
}

fn apart_with<T: From<Result<(), String>> + Send>(commands: &[&[&str]], step: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        // A namespace belongs to a thread, and to the threads and processes that it starts.
        let outcome = scope.spawn(|| {
            match unshare(CloneFlags::CLONE_NEWNET) {
                Ok(()) => {
                    if let Err(why) = commands.iter().try_for_each(|words| run(command("ip", words))) {
                        return Err(why).into();
                    }
                }
                Err(why) => eprintln!("no network namespace ({why}): ports are shared with other programs"),
            }
            step()
        });
        outcome.join().unwrap_or_else(|_| Err("the step has panicked".to_owned()).into())
    })
}

/// Runs something in the network that this program was started in, also from within a step that has one of its own:
/// packages come from there.
pub(crate) fn outside<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let outcome = scope.spawn(|| {
            // The first thread of the process never leaves its namespace. A user without the right to create one
            // stays there too.
            let first = std::fs::File::open("/proc/self/ns/net").map_err(|error| error.to_string());
            if let Err(why) =
                first.and_then(|first| setns(first, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string()))
                && crate::peers::is_root()
            {
                eprintln!("the network that this program was started in cannot be entered: {why}");
            }
            body()
        });
        outcome.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// As root: elsewhere there is nothing to test, and `apart` says so.
    #[test]
    fn a_port_that_is_taken_outside_is_free_within() {
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = outside.local_addr().unwrap();
        let is_alone = |why: &std::io::Error| why.kind() == std::io::ErrorKind::AddrInUse;
        let mut found = None;
        let outcome: Result<(), String> = apart(|| {
            found = Some(TcpListener::bind(address));
            Ok(())
        });
        assert_eq!(outcome, Ok(()));
        match found.expect("the step ran") {
            Ok(_) => assert!(crate::peers::is_root()),
            Err(why) => assert!(is_alone(&why) && !crate::peers::is_root(), "{why}"),
        }
    }

    #[test]
    fn a_step_with_a_network_of_its_own_reaches_the_one_outside() {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let (first, mut seen) = (own(), Vec::new());
        let outcome: Result<(), String> = apart(|| {
            seen = vec![own(), outside(own), own()];
            Ok(())
        });
        assert_eq!(outcome, Ok(()));
        assert_eq!(seen[1], first);
        assert_eq!(seen[0], seen[2]);
        assert_eq!(seen[0] != first, crate::peers::is_root());
    }
}
