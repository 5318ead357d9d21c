//! Programs that connect through librdmacm: its examples, and perftest with `-R`.

use std::time::{Duration, Instant};

use super::ports::{BlockedPort, PORT_PATIENCE, is_taken, on_free_port, wait_until_listening};
use super::{PATIENCE, Started, doorbell, on_doorbell, pairs_of, start};
use crate::shell::output_of;
use crate::test::StepEnd;
use crate::two_machines::{Family, TwoMachines};

/// Command lines with which perftest connects through librdmacm.
const PERFTEST: &[&str] = &[
    "ib_send_bw -R -n 500",
    "ib_send_bw -R -n 500 -b",
    "ib_send_bw -R -n 100 -q 4 -e",
    "ib_send_bw -R -n 500 --use-srq",
    "ib_send_bw -R -n 500 -c UD",
    "ib_send_lat -R -n 500",
    "ib_send_lat -R -n 500 -c UD",
    "ib_write_bw -R -n 500",
    "ib_write_bw -n 500 -z",
    "ib_write_lat -R -n 100",
    "ib_read_bw -R -n 500",
    "ib_read_lat -R -n 200",
    "ib_atomic_bw -R -n 500 -A FETCH_AND_ADD",
    "ib_atomic_lat -R -n 200 -A CMP_AND_SWAP",
];

/// Command lines of servers and clients. `program` adds the port, except for udaddy.
const EXAMPLES: &[(&str, &str)] = &[
    ("rping -s -v -C 100", "rping -c -a 127.0.0.1 -v -C 100"),
    ("rping -s -a 127.0.0.1 -V -C 100 -S 5000", "rping -c -a 127.0.0.1 -V -C 100 -S 5000"),
    ("rping -s -a :: -q -V -C 10", "rping -c -a ::1 -q -V -C 10"),
    ("ucmatose", "ucmatose -s 127.0.0.1"),
    ("ucmatose -c 20 -C 50 -S 3000", "ucmatose -s 127.0.0.1 -c 20 -C 50 -S 3000"),
    ("ucmatose -b 127.0.0.1 -c 2 -t 8 -m", "ucmatose -s 127.0.0.1 -c 2 -t 8 -m"),
    ("ucmatose -f name -b localhost", "ucmatose -f name -s localhost"),
    ("udaddy", "udaddy -s 127.0.0.1"),
    ("udaddy -c 5 -C 20 -S 500", "udaddy -s 127.0.0.1 -c 5 -C 20 -S 500"),
    ("rdma_server", "rdma_client -s 127.0.0.1"),
];

/// Command lines of both members of a multicast group, each with additional arguments of the sender. `multicast` adds
/// the address of the group.
const MEMBERS: &[(&str, &str)] = &[
    ("mckey -C 20", ""),
    ("mckey -C 50 -S 1000 -c 3", ""),
    // Uses the port space of IPoIB. The sender joins the group as a send-only member.
    ("mckey -C 20 -p 0x2", "-o"),
];

/// Port of udaddy. It is fixed, because the option `-p` of udaddy sets the port space.
const UDADDY_PORT: &str = "7174";

fn program(line: &str, port: &str) -> Result<Started, String> {
    let mut words: Vec<&str> = line.split(' ').collect();
    if port != UDADDY_PORT {
        words.extend(["-p", port]);
    }
    start(on_doorbell(&[], &words))
}

fn server(line: &str, port: &str) -> Result<Started, String> {
    let mut server = program(line, port)?;
    wait_until_listening(port, &mut server)?;
    Ok(server)
}

fn example(server_line: &str, client_line: &str, port: &str) -> Result<(), String> {
    let server = server(server_line, port)?;
    let client = program(client_line, port)?;
    let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
    client.and(server).map(drop).map_err(|why| format!("{client_line}: {why}"))
}

/// Runs udaddy. Returns false if another program keeps the port of udaddy. This cannot happen in a separate network
/// namespace.
fn udaddy(server: &str, client: &str) -> Result<bool, String> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        match example(server, client, UDADDY_PORT) {
            Err(why) if is_taken(&why) && Instant::now() < until => std::thread::sleep(Duration::from_millis(200)),
            Err(why) if is_taken(&why) => return Ok(false),
            ended => return ended.map(|()| true),
        }
    }
}

fn expect(said: &str, words: &str) -> Result<(), String> {
    if said.contains(words) { Ok(()) } else { Err(format!("{words:?} is missing in:\n{said}")) }
}

/// Checks that a connection is rejected if no server listens.
fn refused() -> Result<(), String> {
    let blocked = BlockedPort::new().and_then(|blocked| Ok((blocked.address()?.port(), blocked)));
    let (port, _blocked) = blocked.map_err(|error| format!("no TCP port could be blocked: {error}"))?;
    expect(&program("rping -c -a 127.0.0.1", &port.to_string())?.ended()?, "RDMA_CM_EVENT_REJECTED, error 8")
}

/// Checks that the connection of a process ends when its peer is killed. Also checks that the port of a killed server
/// is free again.
fn killed(port: &str) -> Result<(), String> {
    let (server_line, client_line) = ("rping -s -v", "rping -c -a 127.0.0.1 -v");
    for kill_server in [true, false] {
        let mut server = server(server_line, port)?;
        let mut client = program(client_line, port)?;
        client.wait_until(|client| client.said().contains("ping data") || client.has_ended())?;
        let left = if kill_server {
            drop(server);
            client.ended()?
        } else {
            drop(client);
            server.ended()?
        };
        expect(&left, "DISCONNECT EVENT")?;
    }
    example("rping -s -C 10", "rping -c -a 127.0.0.1 -C 10", port)
}

/// Checks that one member of a group receives all messages of the other member. The receiver ends after the last
/// message.
fn multicast() -> Result<(), String> {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    for (number, (line, sender)) in (0_u8..).zip(MEMBERS) {
        // The process id makes the group unique on this machine.
        let group = format!("239.{}.{b}.{c}", a ^ (number << 6));
        let member = |more: &str| {
            let line = format!("stdbuf -oL {line} -m {group} -b 127.0.0.1 {more}");
            start(on_doorbell(&[], &line.split_whitespace().collect::<Vec<_>>()))
        };
        let mut receiver = member("")?;
        receiver.wait_until(|receiver| receiver.said().contains("receiving") || receiver.has_ended())?;
        let sender = member(&format!("-s {sender}"))?;
        let (sender, receiver) = (sender.finish(PATIENCE), receiver.finish(PATIENCE));
        expect(&sender.and(receiver).map_err(|why| format!("{line}: {why}"))?, "data transfers complete")?;
    }
    Ok(())
}

/// Runs cmtime, which opens a hundred connections. The server of cmtime waits for further clients until it is killed.
fn timed(port: &str) -> Result<(), String> {
    let server = server("cmtime", port)?;
    let said = program("cmtime -s 127.0.0.1", port)?.finish(PATIENCE).map_err(|why| format!("cmtime: {why}"))?;
    drop(server);
    expect(&said, "disconnect")
}

/// One of two machines. No other program uses ports of these machines.
struct Machine<'a> {
    machines: &'a TwoMachines,
    number: usize,
    address: String,
}

impl<'a> Machine<'a> {
    fn both(machines: &'a TwoMachines, family: Family) -> [Self; 2] {
        [0, 1].map(|number| Self { machines, number, address: family.address(number) })
    }

    /// Starts a program on this machine, with an RNIC at the address `bind`.
    fn program(&self, bind: &str, line: &str) -> Result<Started, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let options = ["run", "--explain", "--bind", bind, "--"];
        let doorbell = doorbell().to_string_lossy().into_owned();
        start(self.machines.command(self.number, &doorbell, &[&options[..], &words].concat()))
    }

    /// Waits until a table of the kernel lists a listening socket, which the program `by` opens.
    fn wait_for(&self, table: &str, socket: &str, by: &mut Started) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let table = output_of(self.machines.command(self.number, "cat", &[table]))?;
            if table.lines().any(|line| line.contains(socket) && (line.contains(" 0A ") || line.contains('@'))) {
                return Ok(());
            }
            if by.has_ended() || Instant::now() > until {
                return Err(format!("{socket} does not listen: {}", by.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Checks connections between two machines, which use TCP for set-up. Also checks that a server whose TCP port is taken
/// serves clients of its own machine.
fn between_machines() -> Result<(), String> {
    const PORT: u16 = 7471;
    let machines = TwoMachines::new(1500)?;
    for family in Family::BOTH {
        let [one, other] = Machine::both(&machines, family);
        let server_line = format!("rping -s -a {} -p {PORT} -C 10 -V", one.address);
        let client_line = format!("rping -c -a {} -p {PORT} -C 10 -V", one.address);
        let tcp = if family == Family::V4 { "/proc/net/tcp" } else { "/proc/net/tcp6" };
        let tcp_name = format!(":{PORT:04X} ");
        let mut server = one.program(&one.address, &server_line)?;
        one.wait_for(tcp, &tcp_name, &mut server)?;
        let client = other.program(&other.address, &client_line)?;
        let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
        client.and(server).map_err(|why| format!("{client_line} on another machine: {why}"))?;
        if family == Family::V6 {
            continue;
        }
        let script = format!("import socket, time; s = socket.create_server(('', {PORT})); time.sleep(1000)");
        let mut holder = start(one.machines.command(one.number, "python3", &["-c", &script]))?;
        one.wait_for(tcp, &tcp_name, &mut holder)?;
        let mut server = one.program(&one.address, &server_line)?;
        one.wait_for("/proc/net/unix", &format!("doorbell-cm/listen/tcp/{PORT}/"), &mut server)?;
        let why = format!("rdma_listen: TCP port {PORT} is unavailable");
        server.wait_until(|server| server.said().contains(&why) || server.has_ended())?;
        let client = one.program("127.0.0.1", &client_line)?;
        let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
        client.and(server).map_err(|why| format!("{client_line} beside a program that has the TCP port: {why}"))?;
    }
    Ok(())
}

/// Runs all programs of this module.
pub(crate) fn all() -> StepEnd {
    match everything() {
        Ok(0) => StepEnd::Passed,
        Ok(left_out) => StepEnd::LeftOut(format!(
            "{left_out} lines of udaddy: another program has TCP port {UDADDY_PORT}, and udaddy can take no other; all \
             others passed"
        )),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Runs all programs, and returns the number of skipped lines of udaddy.
fn everything() -> Result<usize, String> {
    let mut left_out = 0;
    for (server, client) in EXAMPLES {
        if server.starts_with("udaddy") {
            left_out += usize::from(!udaddy(server, client)?);
        } else {
            on_free_port(|port| example(server, client, port))?;
        }
    }
    refused()?;
    on_free_port(killed)?;
    multicast()?;
    on_free_port(timed)?;
    match TwoMachines::are_impossible() {
        Some(_) => eprintln!("two machines are left out: network namespaces need root and iproute2"),
        None => between_machines()?,
    }
    let examples = EXAMPLES.len() + MEMBERS.len() + 1 - left_out;
    eprintln!("{examples} examples of librdmacm, a rejected connection, and killed peers");
    pairs_of(PERFTEST).map(|()| left_out)
}
