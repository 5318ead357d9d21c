//! Separate network namespaces, in which no other program of the machine uses ports and addresses.

use nix::sched::{CloneFlags, setns, unshare};

use crate::shell::{command, run};

/// Runs a step in a separate network namespace, which disappears with the last process of the step. The namespace
/// avoids conflicts of ports that are not configurable, and races for free ports. Only root can create a namespace.
/// Steps of other users share the network of the machine.
pub(crate) fn apart<T: From<Result<(), String>> + Send>(step: impl FnOnce() -> T + Send) -> T {
    apart_with(&[&["link", "set", "lo", "up"]], step)
}

/// Runs a step as [`apart`], with a further network interface, because libfabric ignores loopback.
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
                Err(why) => eprintln!("no network namespace ({why}): the step shares its ports with other programs"),
            }
            step()
        });
        outcome.join().unwrap_or_else(|_| Err("the step has panicked".to_owned()).into())
    })
}

/// Runs `body` in the network in which this program was started, even if the caller is a step in a separate network.
/// The download of packages needs the outer network.
pub(crate) fn outside<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let outcome = scope.spawn(|| {
            // The main thread never leaves the namespace in which this program was started. If the user may not create
            // namespaces, no thread leaves it.
            let first = std::fs::File::open("/proc/self/ns/net").map_err(|error| error.to_string());
            if let Err(why) =
                first.and_then(|first| setns(first, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string()))
                && crate::peers::is_root()
            {
                eprintln!("the network in which this program was started cannot be entered: {why}");
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

    /// Without root, the step shares the network, so the port is also taken inside.
    #[test]
    fn ports_taken_outside_are_free_inside() {
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
    fn a_step_in_a_separate_network_reaches_the_outer_one() {
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
