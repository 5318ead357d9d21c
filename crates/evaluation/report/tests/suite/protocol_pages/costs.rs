//! Tables of properties and costs, from the steps of protocols and the arithmetic of packets.

use std::fmt::Write as _;

use doorbell_exchange::Config;
use doorbell_protocols::{End, Joined, Properties, Protocol, Size, Step, Store, When, ZeroCopy};
use doorbell_record::receiving_bytes;
use doorbell_wire::{OuterKind, PathMtu, Response, Transport, message_cost};

/// Names of the configurations for which costs are computed.
const CONFIGURATIONS: [&str; 2] = ["unbatched", "batched"];
/// Sizes of messages for which costs are computed, in bytes.
const SIZES: [u64; 2] = [64, 64 << 10];

/// Costs of one message. The first element of each pair is that of the sender, and the second that of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Costs {
    /// Posted work requests of each end.
    posts: [f64; 2],
    /// Packets that each end sends, without acknowledgements.
    packets: [f64; 2],
    /// Requests that each end may acknowledge.
    acknowledged: [f64; 2],
}

fn index(end: End) -> usize {
    match end {
        End::Sender => 0,
        End::Receiver => 1,
    }
}

fn configuration(name: &str) -> (u32, u32) {
    let config = Config::by_name(name).expect("a configuration of published evaluations");
    (u32::try_from(config.batch).unwrap(), u32::try_from(config.depth).unwrap())
}

/// Returns the steps of a protocol with flow control by credits.
fn steps(protocol: Protocol) -> impl Iterator<Item = &'static Step> {
    protocol.steps().iter().filter(|step| step.is_part(true))
}

/// Returns the costs of a message of `bytes` bytes if messages flow one way in full batches, and the receiver has space
/// for `depth` messages. Path MTU 4096, IPv4.
fn costs(protocol: Protocol, bytes: u64, (batch, depth): (u32, u32)) -> Costs {
    let mut costs = Costs::default();
    for step in steps(protocol) {
        let posts = step.when.per_message(batch, depth);
        let together = step.when.freed_at_once(depth).unwrap_or(batch);
        let payload = step.size.bytes(bytes, together.into());
        let cost = message_cost(step.operation, Transport::Rc, payload, PathMtu::Mtu4096, OuterKind::IPV4)
            .unwrap_or_else(|error| panic!("{protocol}: {error}"));
        let (own, other) = (index(step.by), index(step.by.other()));
        costs.posts[own] += posts;
        costs.packets[own] += posts * cost.request.packets as f64;
        match cost.response {
            Response::Exact(response) => costs.packets[other] += posts * response.packets as f64,
            Response::None | Response::Range { .. } => costs.acknowledged[other] += posts,
        }
    }
    costs
}

/// Returns the tables of a protocol: operations, costs, and memory.
pub(crate) fn tables(variants: &[Protocol]) -> String {
    format!("## Costs\n\n{}\n{}\n{}", operations(variants), per_message(variants), memory(variants))
}

fn operations(variants: &[Protocol]) -> String {
    let mut table = "Operations for messages of n bytes:\n\n\
                     | `--protocol` | end | operation | payload | posted |\n|---|---|---|---|---|\n"
        .to_owned();
    for &protocol in variants {
        for step in steps(protocol) {
            let end = if step.by == End::Sender { "sender" } else { "receiver" };
            let (operation, payload, when) = (step.operation, payload(step.size), when(step));
            let _ = writeln!(table, "| `{protocol}` | {end} | {operation} | {payload} | {when} |");
        }
    }
    table
}

fn payload(size: Size) -> String {
    match size {
        Size::Message { beside: 0 } => "n".to_owned(),
        Size::Message { beside } => format!("n + {beside} B"),
        Size::Fixed(bytes) => format!("{bytes} B"),
        Size::AllNew { beside, unit } => {
            format!("all new messages, each n + {beside} B, padded to a multiple of {unit} B")
        }
        Size::Entries(bytes) => format!("{bytes} B for each buffer"),
    }
}

fn when(step: &Step) -> String {
    let when = match step.when {
        When::Message => "for each message".to_owned(),
        When::Post => "for all messages of a post".to_owned(),
        When::Waiting { .. } => "for all waiting messages".to_owned(),
        When::Pulled => "for all new messages".to_owned(),
        When::Reap => "for all completed messages that one poll finds".to_owned(),
        When::Freed { most: 1, .. } => "for each free buffer".to_owned(),
        When::Freed { parts, most: u32::MAX } => format!("for each 1/{parts} of the space that is free again"),
        When::Freed { parts, most } => {
            format!("for each 1/{parts} of the space that is free again, at most {most} buffers")
        }
        When::Short { parts: 1 } => "when a message does not fit".to_owned(),
        When::Short { parts } => format!("when 1/{parts} of the space is in use"),
        When::Polled => "all the time, one after another".to_owned(),
    };
    let joined = match step.joined {
        Joined::Alone => "",
        Joined::Chained => ", in one post with the operation before",
        Joined::Fenced { awaited: false } => ", fenced, in one post with the operation before",
        Joined::Fenced { awaited: true } => {
            ", fenced, in one post with the operation before; its completion is awaited"
        }
    };
    let rides = if step.rides() { ", unless messages of the other direction carry the credits" } else { "" };
    format!("{when}{joined}{rides}")
}

fn per_message(variants: &[Protocol]) -> String {
    let mut table = "Costs of one message, each of *sender, receiver*:\n\n\
                     | `--protocol` | `--config` | work requests | packets sent, 64 B | packets sent, 64 KiB | ACKs sent |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for &protocol in variants {
        for name in CONFIGURATIONS {
            let [small, large] = SIZES.map(|bytes| costs(protocol, bytes, configuration(name)));
            let cells = [small.posts, small.packets, large.packets, small.acknowledged];
            let cells = cells.map(|[sender, receiver]| format!("{}, {}", amount(sender), amount(receiver)));
            let _ = writeln!(table, "| `{protocol}` | {name} | {} |", cells.join(" | "));
        }
    }
    table
}

/// Formats a number of operations as a whole number and a fraction.
fn amount(value: f64) -> String {
    let (whole, part) = (value.trunc(), value.fract());
    if part == 0.0 {
        return whole.to_string();
    }
    // Batches and depths are powers of two.
    let parts = (1..=10).map(|exponent| 2_f64.powi(exponent)).find(|parts| (part * parts).fract() == 0.0);
    let fraction = parts.map_or_else(|| format!("{part:.4}"), |parts| format!("{}/{parts}", part * parts));
    if whole == 0.0 { fraction } else { format!("{whole} + {fraction}") }
}

fn memory(variants: &[Protocol]) -> String {
    let config = Config::unbatched();
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for &protocol in variants {
        let description = protocol.description();
        let sender = if description.sent_from == Store::Ring { "1" } else { "0 from registered memory, else 1" };
        let receiver = match description.zero_copy {
            ZeroCopy::Yes => "0",
            ZeroCopy::Partly => "0 in the program's buffers, 1 into a certain place",
            ZeroCopy::No => "0 if used in the connection's memory, else 1",
        };
        let [small, large] = SIZES.map(|bytes| {
            let (fixed, each) = receiving_bytes(protocol, usize::try_from(bytes).unwrap(), config.window);
            kibibytes(fixed + each * config.depth)
        });
        let (cells, name) = (format!("{sender} | {receiver} | {small} | {large}"), format!("`{protocol}`"));
        match rows.iter_mut().find(|row| row.0 == cells) {
            Some(row) => row.1.push(name),
            None => rows.push((cells, vec![name])),
        }
    }
    let mut table = format!(
        "Copies by CPUs, and memory of one connection for {} messages:\n\n\
         | `--protocol` | copies at the sender | copies at the receiver | receive memory, 64 B | receive memory, 64 KiB |\n\
         |---|---|---|---|---|\n",
        config.depth
    );
    for (cells, names) in rows {
        let _ = writeln!(table, "| {} | {cells} |", names.join(", "));
    }
    table
}

fn kibibytes(bytes: usize) -> String {
    let (unit, size) = if bytes >= 1 << 20 { ("MiB", 1 << 20) } else { ("KiB", 1 << 10) };
    let tenths = (bytes as f64 / f64::from(size) * 10.0).round();
    format!("{:.1} {unit}", tenths / 10.0)
}

/// Returns the table of properties of all protocols.
pub(crate) fn properties(families: &[Vec<Protocol>]) -> String {
    let mut table = "| `--protocol` | zero copy at the receiver | short messages save memory | passive end | \
                     receiver can sleep | sender can sleep | a held message blocks later ones | shared buffers |\n\
                     |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let word = |is: bool| if is { "yes" } else { "-" };
    for &protocol in families.iter().flatten() {
        let Properties {
            zero_copy,
            variable_size,
            passive,
            receiver_sleeps,
            sender_sleeps,
            slow_message_blocks,
            shared_buffers,
        } = protocol.properties();
        let zero_copy = match zero_copy {
            ZeroCopy::Yes => "yes",
            ZeroCopy::Partly => "partly",
            ZeroCopy::No => "-",
        };
        let passive = match passive {
            Some(End::Sender) => "sender",
            Some(End::Receiver) => "receiver",
            None => "-",
        };
        let others = [variable_size, receiver_sleeps, sender_sleeps, slow_message_blocks, shared_buffers].map(word);
        let [variable, receiver, sender, blocks, shared] = others;
        let _ = writeln!(
            table,
            "| `{protocol}` | {zero_copy} | {variable} | {passive} | {receiver} | {sender} | {blocks} | {shared} |"
        );
    }
    table
}

#[test]
fn costs_are_those_of_the_steps() {
    let of =
        |name: &str, bytes, batch, depth| costs(Protocol::by_name(name).expect("a protocol"), bytes, (batch, depth));
    // A SEND of one packet, and a credit message for each quarter of 128 buffers.
    let send = of("send-receive", 64, 1, 128);
    assert_eq!((send.posts, send.packets, send.acknowledged), ([1.0, 0.03125], [1.0, 0.03125], [0.03125, 1.0]));
    // An announcement and 16 packets of a READ response; a READ request and the WRITE of the signal byte.
    let read = of("direct-read", 64 << 10, 1, 128);
    assert_eq!((read.posts, read.packets, read.acknowledged), ([1.0, 2.0], [17.0, 2.0], [1.0, 1.0]));
    // Eight messages share the READ of the tail, one READ and the WRITE of the head.
    let pulled = of("buffered-read", 64, 8, 512);
    assert_eq!((pulled.posts, pulled.packets, pulled.acknowledged), ([0.0, 0.375], [0.25, 0.375], [0.125, 0.0]));
    let texts = [0.0, 1.0, 1.03125, 0.375, 0.1].map(amount);
    assert_eq!(texts, ["0", "1", "1 + 1/32", "3/8", "0.1000"].map(str::to_owned));
}
