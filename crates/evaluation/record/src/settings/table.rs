//! Table of all settings.

use doorbell_exchange::setup::MAX_ENDPOINTS;
use doorbell_exchange::{MAX_BATCH, MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
use doorbell_protocols::Protocol;

use super::{CommandOption, Range, Setting, Value};
use crate::link::Link;
use crate::memory::MAX_MESSAGE;
#[cfg(doc)]
use crate::parameters::Parameters;
use crate::parameters::most_queued;
use crate::serving::SharedBy;
use crate::words::{Extent, Kind, Operation, Transport};

/// Maximum number of threads on each side.
const MAX_THREADS: u64 = 64;
/// Maximum number of messages per connection.
const MAX_MESSAGES: u64 = 1_000_000_000_000_000;
/// Maximum offered rate over all connections, in messages per second.
pub const MAX_MESSAGES_PER_S: f64 = 1e12;

/// Returns a setting whose values are a field: a whole number, one of several words, or on or off.
macro_rules! field {
    ($name:literal, $unit:literal, $least:expr, $most:expr, $($field:ident).+) => {
        Setting {
            field: stringify!($($field).+),
            range: Range::Whole($least, $most as u64),
            get: |all| vec![Value::Whole(all.$($field).+ as u64)],
            put: |all, value| all.$($field).+ = value.whole() as _,
            ..Setting::named($name, $unit)
        }
    };
    ($name:literal, $all:expr, $words:expr, $($field:ident).+) => {
        Setting {
            field: stringify!($($field).+),
            range: Range::Words($words),
            get: |all| $all.iter().position(|one| *one == all.$($field).+).map(Value::Word).into_iter().collect(),
            put: |all, value| all.$($field).+ = $all[value.whole() as usize],
            ..Setting::named($name, "")
        }
    };
    ($name:literal, $($field:ident).+) => {
        Setting {
            field: stringify!($($field).+),
            get: |all| vec![Value::On(all.$($field).+)],
            put: |all, value| all.$($field).+ = value == Value::On(true),
            ..Setting::named($name, "")
        }
    };
}

/// Returns an option in a section of the help: short and long name, value, default, and remainder of the help.
macro_rules! option {
    ($heading:ident, $short:expr, $long:literal, $value:expr, $default:expr, $note:literal) => {
        Some(CommandOption {
            short: $short,
            long: $long,
            value: $value,
            default: $default,
            note: $note,
            heading: $heading,
        })
    };
}

const WORKLOAD: &str = "Workload";
const CONNECTIONS_OF: &str = "Connections";

const KINDS: [Kind; 2] = [Kind::Bandwidth, Kind::Latency];
const OPERATIONS: [Operation; 6] = [
    Operation::Send,
    Operation::Write,
    Operation::Read,
    Operation::CompareSwap,
    Operation::FetchAdd,
    Operation::RequestResponse,
];
const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];
const SHARING: [SharedBy; 2] = [SharedBy::Lock, SharedBy::Thread];

const SIZE_OPTION: Option<CommandOption> = option!(
    WORKLOAD,
    Some('s'),
    "size",
    Some("BYTES"),
    None,
    ", separated by \
    commas, as in 16,64K,1M [default: 16,512,4096,65536,1048576; cas, fetch-add: 8; over ud: 16,512,1024]"
);

/// Makes the table, and a name for each entry.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $setting:expr;)*) => {
        $($(#[$doc])* pub static $name: Setting = $setting;)*

        /// All settings, in the order of the help.
        pub static SETTINGS: &[&Setting] = &[$(&$name),*];
    };
}

settings! {
    /// [`Parameters::kind`].
    KIND = Setting {
        about: "Kind of measurement: the maximum rate of messages, or their latency (1:1 only)",
        sweep: Some("measure"),
        ..field!("the kind of measurement", KINDS, || vec!["bandwidth", "latency"], kind)
    };
    /// [`Parameters::operation`].
    OPERATION = Setting {
        about: "Operation of a message: send, write, read, cas, fetch-add or request-response",
        option: option!(WORKLOAD, None, "op", Some("NAME"), Some("send"), ". The operations write, read, cas and \
            fetch-add are one-sided, on the other side's memory. With request-response, the other side answers each \
            send with a send: see --reply. `load` has request-response by default, unless --reply is 0"),
        ..field!("the operation", OPERATIONS, || vec!["send", "write", "read", "cas", "fetch-add", "request-response"],
            operation)
    };
    /// [`Parameters::protocol`].
    PROTOCOL = Setting {
        about: "How messages travel",
        option: option!(WORKLOAD, None, "protocol", Some("NAME"), Some("send-receive"), ""),
        sweep: Some("protocol"),
        ..field!("the protocol", Protocol::ALL, || Protocol::ALL.iter().map(|one| one.name()).collect(), protocol)
    };
    /// [`Parameters::transport`].
    TRANSPORT = Setting {
        about: "Transport: rc (acknowledged), or uc or ud (unacknowledged SENDs; lost messages are counted)",
        option: option!(WORKLOAD, None, "transport", Some("NAME"), Some("rc"), ". Over ud, a message is at most as \
            long as the path MTU"),
        sweep: Some("transport"),
        unmodelled: Some("nothing was acknowledged, and the model has RC alone"),
        ..field!("the transport", TRANSPORTS, || vec!["rc", "uc", "ud"], transport)
    };
    /// [`Parameters::replicate`].
    REPLICATE = Setting {
        about: "Send each message from one source to the readers of all connections",
        option: option!(WORKLOAD, None, "replicate", None, None, " (only for bw with --protocol direct-read-send or \
            direct-read-fenced-send)"),
        unmodelled: Some("each message went to all connections"),
        ..field!("one source for all connections", replicate)
    };
    /// Each of [`Parameters::sizes`].
    SIZE = Setting {
        field: "sizes",
        about: "Message sizes in bytes",
        range: Range::Whole(0, MAX_MESSAGE as u64),
        option: SIZE_OPTION,
        sweep: Some("size"),
        get: |all| all.sizes.iter().map(|&size| Value::Whole(size as u64)).collect(),
        put: |all, value| all.sizes = vec![value.whole() as usize],
        ..Setting::named("the message size", " B")
    };
    /// [`Parameters::reply`].
    REPLY = Setting {
        field: "reply",
        about: "Size of a reply in bytes; 0 for messages without reply",
        range: Range::Whole(0, MAX_MESSAGE as u64),
        option: option!(WORKLOAD, None, "reply", Some("BYTES"), None, ". Without --op, a size above 0 implies --op \
            request-response [default: the size of the request]"),
        sweep: Some("reply"),
        unmodelled: Some("its replies had a size of their own"),
        get: |all| all.reply.map(|reply| Value::Whole(reply as u64)).into_iter().collect(),
        put: |all, value| all.reply = Some(value.whole() as usize),
        ..Setting::named("the reply size", " B")
    };
    /// [`Parameters::think_us`].
    THINK = Setting {
        about: "Microseconds between a reply and the next request of the same slot of the window",
        option: option!(WORKLOAD, None, "think", Some("MICROSECONDS"), Some("0"), " (closed loop of request-response)"),
        sweep: Some("think_us"),
        unmodelled: Some("its clients paused between a reply and the next request"),
        ..field!("the think time", " us", 0, 1_000_000, think_us)
    };
    /// [`Extent::Messages`].
    MESSAGES = Setting {
        field: "extent.messages",
        about: "Messages (lat: round trips) per connection and size",
        range: Range::Whole(1, MAX_MESSAGES),
        option: option!(WORKLOAD, Some('n'), "iterations", Some("N"), None, ", as in 1e6, instead of a duration"),
        sweep: Some("messages"),
        get: |all| match all.extent {
            Extent::Messages(messages) => vec![Value::Whole(messages)],
            Extent::Seconds(_) => Vec::new(),
        },
        put: |all, value| all.extent = Extent::Messages(value.whole()),
        ..Setting::named("the number of messages", "")
    };
    /// [`Extent::Seconds`].
    SECONDS = Setting {
        field: "extent.seconds",
        about: "Seconds per size, or a time with a unit, as in 500ms",
        range: Range::Real(0.01, 86_400.0),
        option: option!(WORKLOAD, Some('D'), "duration", Some("SECONDS"), None, " [default: 1; with --testbed 10ms of \
            virtual time]"),
        get: |all| match all.extent {
            Extent::Seconds(seconds) => vec![Value::Real(seconds)],
            Extent::Messages(_) => Vec::new(),
        },
        put: |all, value| all.extent = Extent::Seconds(value.number()),
        ..Setting::named("the duration", " s")
    };
    /// [`Parameters::bidirectional`].
    BIDIRECTIONAL = Setting {
        about: "Send from both sides",
        option: option!(WORKLOAD, Some('b'), "bidirectional", None, None, " (bw --op send only)"),
        ..field!("sending both ways", bidirectional)
    };
    /// [`Parameters::rate`].
    RATE = Setting {
        field: "rate",
        about: "Offered messages per second over all connections",
        range: Range::Real(0.001, MAX_MESSAGES_PER_S),
        option: option!(WORKLOAD, None, "rate", Some("N"), None, ", as in 2.5M. Latencies then count from the time at \
            which a message was due (open loop) [default: unlimited]"),
        unmodelled: Some("its rate was given"),
        get: |all| all.rate.map(Value::Real).into_iter().collect(),
        put: |all, value| all.rate = Some(value.number()),
        ..Setting::named("the rate", " messages/s")
    };
    /// [`Parameters::verify`].
    VERIFY = Setting {
        about: "Check every byte of every payload",
        option: option!(WORKLOAD, None, "verify", None, None, ". For writes, check the memory at the end; for atomics, \
            check every value. Each message in flight has its own buffer"),
        unmodelled: Some("payloads were made and checked meanwhile"),
        ..field!("checking payloads", verify)
    };
    /// [`Parameters::memory_bytes`].
    MEMORY = Setting {
        about: "Maximum message memory per process, in MiB or with a unit, as in 4G",
        option: option!(WORKLOAD, None, "memory", Some("MIB"), Some("256"), ". If a measurement needs more, messages \
            share buffers, or window and depth are reduced, and the output has a note. The --memory of a listening \
            side also limits its clients"),
        ..field!("the message memory", " B", 1 << 20, 1_u64 << 40, memory_bytes)
    };
    /// [`Parameters::slow_receiver_us`].
    SLOW_RECEIVER = Setting {
        about: "Microseconds that the receiver spends on each message",
        option: option!(WORKLOAD, None, "slow-receiver-us", Some("US"), Some("0"), " (bw --op send or \
            request-response)"),
        unmodelled: Some("its receiver was slowed down"),
        ..field!("the receiver's pause", " us", 0, 1_000_000, slow_receiver_us)
    };
    /// [`Parameters::connections`].
    CONNECTIONS = Setting {
        about: "Number of connections",
        option: option!(CONNECTIONS_OF, Some('q'), "connections", Some("N"), None, " [default: the number of threads]"),
        ..field!("the number of connections", "", 1, MAX_ENDPOINTS, connections)
    };
    /// [`Serving::threads`](crate::Serving::threads).
    THREADS = Setting {
        about: "Threads on each side, among which the connections are distributed",
        bound: Some(|all| all.connections as u64),
        option: option!(CONNECTIONS_OF, None, "threads", Some("N"), Some("1"), " (not lat)"),
        ..field!("the number of threads", "", 1, MAX_THREADS, serving.threads)
    };
    /// [`Serving::server_threads`](crate::Serving::server_threads).
    SERVER_THREADS = Setting {
        about: "Threads on the answering side; 0: as many as on the asking side",
        option: option!(CONNECTIONS_OF, None, "server-threads", Some("N"), Some("0"), ", so N clients are the pattern N:N. \
            With 1, one thread serves all connections: N:1 (bw --op send or request-response)"),
        sweep: Some("server_threads"),
        unmodelled: Some("its answering side had a number of threads of its own"),
        ..field!("the number of server threads", "", 0, MAX_THREADS, serving.server_threads)
    };
    /// [`Serving::shared_receives`](crate::Serving::shared_receives).
    SHARED_RECEIVES = Setting {
        field: "serving.shared_receives",
        about: "Share the receive buffers of all connections of the receiving side",
        range: Range::Words(|| vec!["lock", "thread"]),
        option: option!(CONNECTIONS_OF, None, "use-srq", Some("BY"), None, " (bw --op send, send-receive). With `lock`, \
            the thread that returns a buffer posts it again under a lock; with `thread`, a dedicated thread posts all \
            buffers again"),
        get: |all| {
            let by = |by| SHARING.iter().position(|one| *one == by);
            all.serving.shared_receives.and_then(by).map(Value::Word).into_iter().collect()
        },
        put: |all, value| all.serving.shared_receives = Some(SHARING[value.whole() as usize]),
        ..Setting::named("sharing receive buffers", "")
    };
    /// [`Serving::single_receiver`](crate::Serving::single_receiver).
    SINGLE_RECEIVER = Setting {
        about: "Receive from all connections with one thread and one completion queue",
        option: option!(CONNECTIONS_OF, None, "single-receiver", None, None, " (bw --op send, send-receive)"),
        ..field!("a single receiver", serving.single_receiver)
    };
    /// [`Parameters::window`].
    WINDOW = Setting {
        about: "Maximum number of unacknowledged messages, unanswered requests or incomplete one-sided operations per \
            connection",
        bound: Some(|all| most_queued(all.connections) as u64),
        option: option!(CONNECTIONS_OF, Some('t'), "window", Some("N"), None, " [default: 64, or the number that fits \
            into 512 KiB, at least 2; lat: 1; load without --rate: 1, but not for one-way messages]"),
        sweep: Some("window"),
        ..field!("the window", "", 1, MAX_WINDOW, window)
    };
    /// [`Parameters::batch`].
    BATCH = Setting {
        about: "Messages per post",
        bound: Some(|all| all.window as u64),
        option: option!(CONNECTIONS_OF, Some('l'), "batch", Some("N"), None, " (doorbell batching) [default: 1]"),
        sweep: Some("batch"),
        ..field!("the batch", "", 1, MAX_BATCH, batch)
    };
    /// [`Parameters::depth`].
    DEPTH = Setting {
        about: "Receive buffers per connection, or with --use-srq of all connections together",
        bound: Some(|all| most_queued(if all.serving.shared_receives.is_some() { 1 } else { all.connections }) as u64),
        option: option!(CONNECTIONS_OF, Some('r'), "depth", Some("N"), None, ". The default per connection is twice the \
            window, at least 64; or the number that fits into 1 MiB, at least 4. With --use-srq, the default is \
            multiplied by the number of connections"),
        sweep: Some("depth"),
        ..field!("the receive depth", "", 1, MAX_WINDOW, depth)
    };
    /// [`Parameters::buffers`].
    BUFFERS = Setting {
        field: "buffers",
        about: "Number of buffers of each connection and side, which messages use in turn",
        range: Range::Whole(1, MAX_WINDOW as u64),
        option: option!(CONNECTIONS_OF, None, "buffers", Some("N"), None, ". Received messages overwrite each other \
            (send-receive, or --op write or read; without --verify) [default: a buffer for each message of the window \
            and each receive]"),
        unmodelled: Some("its messages shared buffers"),
        get: |all| all.buffers.map(|buffers| Value::Whole(buffers as u64)).into_iter().collect(),
        put: |all, value| all.buffers = Some(value.whole() as usize),
        ..Setting::named("the number of buffers", "")
    };
    /// [`Parameters::inline`].
    INLINE = Setting {
        about: "Maximum size of messages that are sent inline, in bytes",
        option: option!(CONNECTIONS_OF, Some('I'), "inline", Some("BYTES"), Some("64"), ""),
        sweep: Some("inline"),
        ..field!("inline", " B", 0, 1024, inline)
    };
    /// [`Parameters::events`].
    EVENTS = Setting {
        about: "Sleep on completion events instead of polling",
        option: option!(CONNECTIONS_OF, Some('e'), "events", None, None, ""),
        unmodelled: Some("it slept, and waking up has no parameter"),
        ..field!("sleeping on events", events)
    };
    /// [`Parameters::mtu`].
    MTU = Setting {
        field: "mtu",
        about: "Path MTU: 256, 512, 1024, 2048 or 4096",
        range: Range::OneOf(&[256, 512, 1024, 2048, 4096]),
        option: option!(CONNECTIONS_OF, Some('m'), "mtu", Some("BYTES"), None, " [default: the largest path MTU that \
            both ends support]"),
        get: |all| all.mtu.map(|mtu| Value::Whole(mtu as u64)).into_iter().collect(),
        put: |all, value| all.mtu = Some(value.whole() as usize),
        ..Setting::named("the path MTU", " B")
    };
    /// [`Parameters::credits`].
    CREDITS = Setting {
        about: "Disable flow control: a receiver that is too slow sends RNR NAKs, which are counted",
        option: option!(CONNECTIONS_OF, None, "no-credits", None, None, ""),
        ..field!("flow control by credits", credits)
    };
    /// [`Parameters::timeout`].
    TIMEOUT = Setting {
        about: "Acknowledgement timeout: 4.096 us times two to the power of N; 0 disables it",
        option: option!(CONNECTIONS_OF, Some('u'), "qp-timeout", Some("N"), Some("14"), ""),
        sweep: Some("timeout"),
        ..field!("the timeout", "", 0, 31, timeout)
    };
    /// [`Parameters::retry_count`].
    RETRY_COUNT = Setting {
        about: "Maximum consecutive expirations of the acknowledgement timeout, 0 to 7; rdma_rxe treats 7 as unlimited",
        option: option!(CONNECTIONS_OF, None, "retry", Some("N"), Some("7"), ""),
        ..field!("the retry count", "", 0, 7, retry_count)
    };
    /// [`Parameters::rnr_retry`].
    RNR_RETRY = Setting {
        about: "Maximum consecutive RNR NAKs of a message, 0 to 6; 7 means unlimited",
        option: option!(CONNECTIONS_OF, None, "rnr-retry", Some("N"), Some("7"), ""),
        ..field!("the RNR retry count", "", 0, 7, rnr_retry)
    };
    /// [`Parameters::signal_each`].
    SIGNAL_EACH = Setting {
        about: "Give every message its own completion",
        ..field!("a completion for each message", signal_each)
    };
    /// [`Serving::poll_list`](crate::Serving::poll_list).
    POLL_LIST = field!("the completions of one poll", "", 1, MAX_POLL_LIST, serving.poll_list);
    /// [`Serving::repost_list`](crate::Serving::repost_list).
    REPOST_LIST = field!("the receives of one post", "", 1, MAX_REPOST_LIST, serving.repost_list);
    /// [`Parameters::addresses`].
    ADDRESSES = Setting {
        field: "addresses",
        range: Range::Whole(1, MAX_ENDPOINTS as u64),
        bound: Some(|all| all.connections as u64),
        get: |all| all.addresses.map(|count| Value::Whole(count as u64)).into_iter().collect(),
        put: |all, value| all.addresses = Some(value.whole() as usize),
        ..Setting::named("the number of addresses", "")
    };
    /// [`Parameters::link`].
    LINK = Setting {
        field: "link",
        range: Range::Words(|| vec!["udp", "shared_memory"]),
        unmodelled: Some("its link was chosen for it, and the points beside it had another one"),
        get: |all| {
            let link = |link| Link::ALL.iter().position(|one| *one == link);
            all.link.and_then(link).map(Value::Word).into_iter().collect()
        },
        put: |all, value| all.link = Some(Link::ALL[value.whole() as usize]),
        ..Setting::named("the link", "")
    };
}

/// [`Parameters::mix`].
pub static MIX: Setting = Setting {
    option: option!(WORKLOAD, None, "sizes", Some("BYTES:WEIGHT"), None, ""),
    ..Setting::named("the mix of sizes", "")
};

/// Number of [`Parameters::sizes`].
pub static SIZES: Setting = Setting { option: SIZE_OPTION, ..Setting::named("the number of message sizes", "") };
