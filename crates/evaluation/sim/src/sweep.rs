//! Sweeps: the same traffic with different parameters of the testbed and of the traffic.
//!
//! ```
//! use doorbell_sim::sweep::{Axis, Base, Sweep};
//! use doorbell_sim::testbed;
//!
//! let mut base = Base::new(testbed::by_name("connectx5-100g").ok_or("a built-in testbed")?);
//! base.set("messages", "500")?;
//! let axes = ["link.rate_gbps=25,100".parse::<Axis>()?, "size=16,4096".parse()?];
//! let sweep = Sweep::new(&base, axes.to_vec(), 1 << 30)?;
//! let rates = sweep.points().iter().map(|point| Ok(point.run(1, 1 << 30, None, None)?.messages_per_s));
//! let rates: Vec<f64> = rates.collect::<Result<_, Box<dyn std::error::Error>>>()?;
//! // Messages of 4096 B fill a line of 25 Gb/s. Messages of 16 B do not.
//! assert!(rates[1] * 3.0 < rates[3] && rates[0] * 1.1 > rates[2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod mix;
mod preset;

use std::io::Write;
use std::str::FromStr;

use doorbell_record::settings::{MAX_MESSAGES_PER_S, Range, SETTINGS, SIZE, Setting, Value};
use doorbell_record::{Extent, Kind, Operation, Parameters, SizeMix};

use crate::testbed::{Testbed, nearest};
use crate::topology::{MAX_NODES, Topology, TopologyError};
use crate::traffic::{Carried, Pattern, Run, Traffic, TrafficError};
pub use error::{MAX_POINTS, SweepError};
use mix::{MIXES, SIZES, described_mix, parse_mix};
pub use preset::{MANY_TO_ONE, Preset};

/// Maximum number of messages of all connections of a point.
const MAX_TOTAL: u64 = 1_000_000_000_000;

/// Kind of network between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Cable,
    Switch,
    Clos,
}

/// Common settings of all points of a sweep: testbed, traffic and network.
#[derive(Clone, Debug)]
pub struct Base {
    testbed: Testbed,
    traffic: Traffic,
    /// Bytes of a message without a mix of sizes.
    plain_bytes: usize,
    /// Whether the pattern was set. Without one, several senders would be ignored.
    has_pattern: bool,
    /// Number of messages of all connections together, or 0 if each connection has its own number.
    total_messages: u64,
    between: Between,
    leaf_nodes: usize,
    oversubscription: usize,
}

const BETWEEN: [Between; 3] = [Between::Cable, Between::Switch, Between::Clos];

/// Returns the settings of pattern and network, which no measurement has, and the rate, which may be unlimited here.
fn own_settings() -> [Setting<Base>; 7] {
    let nodes = Range::Whole(1, MAX_NODES as u64);
    [
        Setting {
            about: "Pattern of sending threads, each on a node of its own, and of receiving nodes; N is `senders`",
            range: Range::Words(|| Pattern::ALL.map(Pattern::name).to_vec()),
            get: |base| place(&Pattern::ALL, &base.traffic.pattern),
            put: |base, value| base.traffic.pattern = Pattern::ALL[value.whole() as usize],
            ..Setting::named("pattern", "")
        },
        Setting {
            about: "N of the pattern: sending threads of N:1 and N:N, receiving nodes of 1:N; see `server_threads`",
            range: Range::Whole(1, MAX_NODES as u64 - 1),
            get: |base| vec![Value::Whole(base.traffic.n as u64)],
            put: |base, value| base.traffic.n = value.whole() as usize,
            ..Setting::named("senders", "")
        },
        Setting {
            about: "Messages of all connections together, at least one each; 0: `messages` of each connection",
            range: Range::Whole(0, MAX_TOTAL),
            get: |base| vec![Value::Whole(base.total_messages)],
            put: |base, value| base.total_messages = value.whole(),
            ..Setting::named("total_messages", "")
        },
        Setting {
            about: "Offered messages per second of all connections; latencies then begin when due; 0: unlimited",
            range: Range::Real(0.0, MAX_MESSAGES_PER_S),
            get: |base| vec![Value::Real(base.traffic.parameters.rate.unwrap_or(0.0))],
            put: |base, value| base.traffic.parameters.rate = Some(value.number()).filter(|&rate| rate > 0.0),
            ..Setting::named("rate", " messages/s")
        },
        Setting {
            about: "Network between nodes: a cable between two, one switch, or a two-level Clos network",
            range: Range::Words(|| vec!["cable", "switch", "clos"]),
            get: |base| place(&BETWEEN, &base.between),
            put: |base, value| base.between = BETWEEN[value.whole() as usize],
            ..Setting::named("network", "")
        },
        Setting {
            about: "Nodes per leaf of a Clos network",
            range: nodes,
            get: |base| vec![Value::Whole(base.leaf_nodes as u64)],
            put: |base, value| base.leaf_nodes = value.whole() as usize,
            ..Setting::named("leaf_nodes", "")
        },
        Setting {
            about: "Rate of a leaf's nodes divided by the rate of its cables to spines; a divisor of `leaf_nodes`",
            range: nodes,
            get: |base| vec![Value::Whole(base.oversubscription as u64)],
            put: |base, value| base.oversubscription = value.whole() as usize,
            ..Setting::named("oversubscription", "")
        },
    ]
}

fn place<T: PartialEq>(all: &[T], one: &T) -> Vec<Value> {
    all.iter().position(|other| other == one).map(Value::Word).into_iter().collect()
}

/// Names of options of `doorbell bench`, each with the name of the same setting in sweeps.
const OPTIONS: [(&str, &str); 4] =
    [("clients", "senders"), ("request", "size"), ("outstanding", "window"), ("think", "think_us")];

/// Returns the name in sweeps of a setting that may have the name of an option of `doorbell bench`.
pub fn in_sweeps(name: &str) -> &str {
    OPTIONS.iter().find(|(option, _)| *option == name).map_or(name, |&(_, swept)| swept)
}

/// Returns the settings of a measurement that can be swept, each with its name in sweeps.
fn measured_settings() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    SETTINGS.iter().filter_map(|setting| Some((setting.sweep?, *setting)))
}

/// A setting that can be swept, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Name of the setting.
    pub name: &'static str,
    /// Description of the setting.
    pub about: &'static str,
    /// Value of the setting.
    pub value: String,
    /// Description of the allowed values.
    pub allowed: String,
}

/// Returns a setting of `of` with its value.
fn described<P>(name: &'static str, setting: &Setting<P>, of: &P) -> Swept {
    let values = (setting.get)(of);
    let value = values.first().map_or_else(String::new, |&value| setting.show(value));
    Swept {
        name,
        about: setting.about,
        value: value.trim_end_matches(setting.unit).to_owned(),
        allowed: setting.allowed(None),
    }
}

impl Base {
    /// Creates the default settings: 20,000 Send-Receive messages of 16 B between two nodes on one switch.
    pub fn new(testbed: &Testbed) -> Self {
        let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, 16);
        // Show the window and the depth in the settings, even if the user has not set them.
        parameters.depths_are_defaults = false;
        parameters.reply = Some(0);
        parameters.extent = Extent::Messages(20_000);
        let traffic = Traffic { pattern: Pattern::OneToOne, n: 1, parameters, bytes: 16 };
        let (between, leaf_nodes, oversubscription) = (Between::Switch, 16, 1);
        Self {
            testbed: testbed.clone(),
            plain_bytes: traffic.bytes,
            traffic,
            has_pattern: false,
            total_messages: 0,
            between,
            leaf_nodes,
            oversubscription,
        }
    }

    /// Returns the testbed.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// Returns the settings of traffic and network.
    pub fn settings(&self) -> Vec<Swept> {
        let swept = own_settings().into_iter().map(|own| described(own.name, &own, self));
        let measured = measured_settings().map(|(name, setting)| described(name, setting, &self.traffic.parameters));
        swept.chain([described_mix(self.traffic.parameters.mix.as_ref())]).chain(measured).collect()
    }

    /// Sets a parameter of the testbed (as [`Testbed::with`]), of the traffic or of the network.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such parameter, or the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SweepError> {
        let (name, value) = (in_sweeps(name), value.trim());
        if name.contains('.') {
            self.testbed = self.testbed.with(name, value)?;
            return Ok(());
        }
        let refused = |allowed| SweepError::Value { name: name.to_owned(), value: value.to_owned(), allowed };
        if name == SIZES {
            let mix = parse_mix(value).ok_or_else(|| refused(MIXES.to_owned()))?;
            let Traffic { parameters, bytes, .. } = &mut self.traffic;
            parameters.mix = if mix.0.is_empty() { None } else { Some(mix) };
            *bytes = parameters.mix.as_ref().map_or(self.plain_bytes, SizeMix::longest);
            parameters.sizes = vec![*bytes];
            return Ok(());
        }
        if let Some(own) = own_settings().into_iter().find(|own| own.name == name) {
            let is_set = own.parse(value).is_some_and(|value| own.set(self, value));
            self.has_pattern |= name == "pattern";
            return if is_set { Ok(()) } else { Err(refused(own.allowed(None))) };
        }
        let Some((_, setting)) = measured_settings().find(|(known, _)| *known == name) else {
            let is_option = |setting: &&Setting| setting.option.is_some_and(|option| option.long == name);
            let known = if SETTINGS.iter().any(is_option) {
                format!("`doorbell bench --testbed {} --{name}` simulates one workload with it", self.testbed.name)
            } else {
                let known = nearest(name, self.settings().iter().map(|setting| setting.name));
                format!("{known}, or a parameter of the testbed, as link.rate")
            };
            return Err(SweepError::Unknown { name: name.to_owned(), known });
        };
        let Traffic { parameters, bytes, .. } = &mut self.traffic;
        if !setting.parse(value).is_some_and(|value| setting.set(parameters, value)) {
            return Err(refused(setting.allowed(None)));
        }
        if *setting == SIZE {
            (*bytes, parameters.mix) = (parameters.sizes[0], None);
            self.plain_bytes = *bytes;
        }
        parameters.operation = if parameters.reply == Some(0) { Operation::Send } else { Operation::RequestResponse };
        Ok(())
    }

    /// Returns a value as a number with its unit; `None` for a word.
    fn number(&self, name: &str) -> Option<(f64, &'static str)> {
        let number = |value: Option<&Value>, unit: &'static str| match value? {
            Value::Word(_) | Value::On(_) => None,
            number => Some((number.number(), unit.trim_start())),
        };
        if let Some(own) = own_settings().into_iter().find(|own| own.name == name) {
            return number((own.get)(self).first(), own.unit);
        }
        if let Some((_, setting)) = measured_settings().find(|(known, _)| *known == name) {
            return number((setting.get)(&self.traffic.parameters).first(), setting.unit);
        }
        let parameter = self.testbed.parameters().find(|parameter| {
            name.strip_prefix(&parameter.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        })?;
        Some((parameter.value.parse().ok()?, parameter.unit))
    }

    /// Distributes the messages of all connections, if their number is set.
    fn distribute_messages(&mut self) {
        let connections = self.traffic.pattern.pairs(self.traffic.n).len().max(1) as u64;
        if self.total_messages > 0 {
            self.traffic.parameters.extent = Extent::Messages((self.total_messages / connections).max(1));
        }
    }

    fn topology(&self) -> Result<Topology, TopologyError> {
        let nodes = self.traffic.pattern.nodes(self.traffic.n);
        match self.between {
            Between::Cable => Ok(Topology::Pair),
            Between::Switch => Ok(Topology::Star { nodes }),
            Between::Clos => Topology::clos(nodes, self.leaf_nodes, self.oversubscription),
        }
    }
}

/// A parameter and its values: `link.rate_gbps=25,100,400`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Name, as in [`Base::set`].
    pub name: String,
    /// Values, as in [`Base::set`].
    pub values: Vec<String>,
}

impl FromStr for Axis {
    type Err = SweepError;

    fn from_str(text: &str) -> Result<Self, SweepError> {
        let refused = || SweepError::Axis(text.to_owned());
        let (name, values) = text.split_once('=').ok_or_else(refused)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if name.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(refused());
        }
        Ok(Self { name: in_sweeps(name.trim()).to_owned(), values })
    }
}

/// One point of a sweep.
#[derive(Clone, Debug)]
pub struct Point {
    /// Value on each axis, in the order of the axes, as given.
    pub values: Vec<String>,
    /// The values as numbers with units; `None` for words.
    pub numbers: Vec<Option<(f64, &'static str)>>,
    base: Base,
    topology: Topology,
    memory: u64,
}

impl Point {
    /// Returns the estimated memory of the point in bytes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> u64 {
        let Traffic { pattern, n, parameters, .. } = &self.base.traffic;
        match parameters.extent {
            Extent::Messages(messages) => messages.saturating_mul(pattern.pairs(*n).len() as u64),
            Extent::Seconds(_) => 0,
        }
    }

    /// Returns the mean size of a message in bytes. Of messages and their replies, the longer ones count.
    pub fn mean_bytes(&self) -> f64 {
        let Traffic { parameters, bytes, .. } = &self.base.traffic;
        let of_messages = parameters.mix.as_ref().map_or(*bytes as f64, SizeMix::mean);
        match parameters.reply {
            Some(reply) if parameters.operation == Operation::RequestResponse => of_messages.max(reply as f64),
            _ => of_messages,
        }
    }

    /// Returns whether several senders share a receiving node, and each has a receiving thread of its own there.
    pub fn has_thread_per_sender(&self) -> bool {
        let Traffic { pattern, n, parameters, .. } = &self.base.traffic;
        *pattern == Pattern::ManyToOne && *n > 1 && parameters.serving.server_threads == 0
    }

    /// Returns the nodes and the network between them.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Simulates the point.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Traffic::run`].
    pub fn run(
        &self,
        seed: u64,
        memory: u64,
        capture: Option<Box<dyn Write + Send>>,
        progress: Option<&dyn Fn(u64)>,
    ) -> Result<Carried, TrafficError> {
        let (testbed, topology) = (&self.base.testbed, self.topology);
        self.base.traffic.run(Run { testbed, topology, seed, memory, capture, progress })
    }
}

/// A sweep: all combinations of the values of some axes.
#[derive(Clone, Debug)]
pub struct Sweep {
    axes: Vec<Axis>,
    points: Vec<Point>,
}

impl Sweep {
    /// Creates a sweep and checks all its points before the first point runs. No point may need more than `memory`
    /// bytes.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown or repeated name, a value that is not allowed, contradicting values, a point
    /// above the memory limit, or too many points.
    pub fn new(base: &Base, axes: Vec<Axis>, memory: u64) -> Result<Self, SweepError> {
        let count = axes.iter().map(|axis| axis.values.len()).try_fold(1_usize, usize::checked_mul);
        let count = count.unwrap_or(usize::MAX);
        if count > MAX_POINTS {
            return Err(SweepError::Points { points: count });
        }
        // A mix of sizes replaces the size, and a size the mix.
        let set_by = |axis: &Axis| if axis.name == SIZES { "size".to_owned() } else { axis.name.clone() };
        for (index, axis) in axes.iter().enumerate() {
            if axes[..index].iter().any(|other| set_by(other) == set_by(axis)) {
                return Err(SweepError::Twice(axis.name.clone()));
            }
        }
        let points = (0..count).map(|number| point(base, &axes, number, memory)).collect::<Result<_, _>>()?;
        Ok(Self { axes, points })
    }

    /// Returns the axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Returns the points. The last axis changes first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

fn point(base: &Base, axes: &[Axis], number: usize, memory: u64) -> Result<Point, SweepError> {
    let (mut values, mut left) = (Vec::new(), number);
    for axis in axes.iter().rev() {
        values.insert(0, axis.values[left % axis.values.len()].clone());
        left /= axis.values.len();
    }
    let mut base = base.clone();
    for (axis, value) in axes.iter().zip(&values) {
        base.set(&axis.name, value)?;
    }
    if !base.has_pattern && base.traffic.n > 1 {
        return Err(SweepError::Senders(base.traffic.n));
    }
    base.distribute_messages();
    let described = || {
        let named = axes.iter().zip(&values).map(|(axis, value)| format!("{}={value}", axis.name));
        named.collect::<Vec<_>>().join(", ")
    };
    let topology = base.topology().map_err(|error| SweepError::Topology { at: described(), error })?;
    base.traffic.check(topology, memory).map_err(|error| SweepError::Point { at: described(), error })?;
    let needed = base.traffic.memory(topology).map_err(|error| SweepError::Point { at: described(), error })?;
    let numbers = axes.iter().map(|axis| base.number(&axis.name)).collect();
    Ok(Point { values, numbers, base, topology, memory: needed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::by_name;

    fn base() -> Base {
        Base::new(by_name("connectx5-100g").expect("a built-in testbed"))
    }

    fn refused(axes: &[&str]) -> String {
        let parsed = axes.iter().map(|axis| axis.parse()).collect::<Result<Vec<Axis>, _>>();
        parsed
            .and_then(|axes| Sweep::new(&base(), axes, 1 << 30))
            .expect_err("the settings must be rejected")
            .to_string()
    }

    #[test]
    fn sizes_may_have_units() {
        let mut base = base();
        base.set("size", "64K").expect("a size");
        base.set("reply", "1MiB").expect("a size");
        assert_eq!((base.traffic.bytes, base.traffic.parameters.reply), (65_536, Some(1 << 20)));
        for (name, value) in [("size", "2G"), ("size", "K"), ("size", "4KB"), ("size", "64KK"), ("window", "1K")] {
            assert!(base.set(name, value).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn errors_name_the_parameter_and_the_allowed_values() {
        for (axes, words) in [
            (&["link.rat=1"][..], "link.rat: there is no such field; the nearest is link.rate"),
            (&["sise=1"], "sise: there is no such parameter; the nearest is size"),
            (&["quux=1"], "there is no such parameter; allowed is pattern, senders"),
            (&["verify=on"], "no such parameter; `doorbell bench --testbed connectx5-100g --verify` simulates one"),
            (&["rate=-1"], "rate: the value is -1, allowed is 0 to 1000000000000 messages/s"),
            (&["rate=5", "reply=16", "think_us=5"], "the think time is 5 us, allowed is 0 us with a rate"),
            (&["sizes=64:x"], "sizes: the value is 64:x, allowed is none, or sizes with weights"),
            (&["sizes=64:0+128:1"], "sizes: the value is 64:0+128:1, allowed is none"),
            (&["sizes=64+128", "size=32"], "size is varied twice"),
            (&["sizes=64+128", "protocol=buffered-read"], "one size (-s) with buffered-read"),
            (&["link.rate_gbps=25,0"], "link.rate_gbps: the value is 0 Gb/s, allowed is 1 Mb/s to 100000 Gb/s"),
            (&["window=0"], "window: the value is 0, allowed is 1 to 16384"),
            (&["outstanding=0"], "window: the value is 0, allowed is 1 to 16384"),
            (&["clients=0"], "senders: the value is 0, allowed is 1 to"),
            (&["clients=24"], "senders: the value is 24, allowed is 1 without a pattern; give a pattern too"),
            (&["size=16", "request=32"], "size is varied twice"),
            (&["size=12x"], "size: the value is 12x, allowed is 0 to 1073741824"),
            (&["protocol=carrier-pigeon"], "allowed is one of send-receive"),
            (&["window"], "window: give a parameter and its values, as in link.rate_gbps=25,100,400"),
            (&["window=1,,2"], "give a parameter and its values"),
            (&["window=1,2", "window=3"], "window is varied twice"),
            (&["network=clos", "oversubscription=3"], "at network=clos, oversubscription=3: the oversubscription is 3"),
            (
                &["pattern=N:1", "senders=4", "network=cable"],
                "at pattern=N:1, senders=4, network=cable: the pattern N:1",
            ),
            (&["batch=65"], "batch: the value is 65, allowed is 1 to 64"),
            (&["batch=64", "window=32"], "at batch=64, window=32: "),
            (&["transport=tcp"], "transport: the value is tcp, allowed is one of rc, uc, ud"),
            (&["transport=ud", "size=5000"], "at transport=ud, size=5000: "),
            (&["transport=uc", "protocol=direct-read"], "rc for protocols, since messages"),
            (&["transport=uc", "reply=16"], "reply=16: the transport is uc, allowed is rc for operations"),
            (&["transport=ud", "server_threads=1"], "only acknowledged messages share receiving threads"),
            (&["think_us=5"], "at think_us=5: the think time is 5 us, allowed is 0 us unless the operation"),
        ] {
            let found = refused(axes);
            assert!(found.contains(words), "{words:?} is missing in: {found}");
        }
        let many: Vec<String> = (1..=40).map(|value| value.to_string()).collect();
        let many = many.join(",");
        let found = refused(&[&format!("window={many}"), &format!("size={many}")]);
        assert_eq!(found, "the sweep has 1600 points, allowed are 1000");
    }

    #[test]
    fn a_sweep_has_all_combinations_of_axis_values() {
        let axes =
            ["link.rate=25Gb/s,100Gb/s", "pattern=N:1,N:N", "senders=3"].map(|axis| axis.parse().expect("an axis"));
        let sweep = Sweep::new(&base(), axes.to_vec(), 1 << 30).expect("a sweep");
        let values: Vec<_> = sweep.points().iter().map(|point| point.values.join(" ")).collect();
        assert_eq!(values, ["25Gb/s N:1 3", "25Gb/s N:N 3", "100Gb/s N:1 3", "100Gb/s N:N 3"]);
        assert_eq!(sweep.points()[0].numbers, [Some((25.0, "Gb/s")), None, Some((3.0, ""))]);
        assert_eq!(sweep.points()[1].topology(), Topology::Star { nodes: 6 });
        assert_eq!(sweep.points()[1].messages(), 60_000);
        assert_eq!([0, 1].map(|index| sweep.points()[index].has_thread_per_sender()), [true, false]);
        let mut served = base();
        served.set("server_threads", "1").expect("a setting");
        let sweep = Sweep::new(&served, axes.to_vec(), 1 << 30).expect("a sweep");
        assert!(!sweep.points().iter().any(Point::has_thread_per_sender));
    }

    #[test]
    fn each_setting_accepts_its_default_value() {
        let mut base = base();
        for setting in base.settings() {
            base.set(setting.name, &setting.value).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!(base.settings().len(), 21);
    }

    #[test]
    fn a_size_replaces_a_mix_of_sizes() {
        let mut base = base();
        base.set("sizes", "64:0.75+1K:0.25").expect("a mix");
        let mean = |base: &Base| Sweep::new(base, Vec::new(), 1 << 30).expect("a sweep").points()[0].mean_bytes();
        assert_eq!((base.traffic.bytes, mean(&base)), (1024, 304.0));
        let value = |base: &Base| base.settings().into_iter().find(|it| it.name == SIZES).map(|it| it.value);
        assert_eq!(value(&base).as_deref(), Some("64:0.75+1024:0.25"));
        base.set("size", "512").expect("a size");
        assert_eq!((value(&base).as_deref(), mean(&base)), (Some("none"), 512.0));
        base.set("sizes", "64,128").expect("a mix with a comma");
        base.set("reply", "4096").expect("a reply");
        assert_eq!(mean(&base), 4096.0);
    }

    #[test]
    fn points_without_a_mix_have_the_plain_size() {
        let mut base = base();
        base.set("size", "512").expect("a size");
        let means = |base: &Base| {
            let axis = "sizes=none,64:0.75+1K:0.25,none".parse().expect("an axis");
            let sweep = Sweep::new(base, vec![axis], 1 << 30).expect("a sweep");
            sweep.points().iter().map(Point::mean_bytes).collect::<Vec<_>>()
        };
        assert_eq!(means(&base), [512.0, 304.0, 512.0]);
        base.set("sizes", "64+4K").expect("a mix");
        assert_eq!(means(&base), [512.0, 304.0, 512.0]);
        base.set("sizes", "none").expect("no mix");
        assert_eq!((base.traffic.bytes, &base.traffic.parameters.sizes[..]), (512, &[512][..]));
    }
}
