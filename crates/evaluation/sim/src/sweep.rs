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

use std::io::Write;
use std::str::FromStr;

use doorbell_protocols::Protocol;
use doorbell_study::parameters::{Extent, Kind, Operation, Parameters, Transport};

use crate::testbed::{Testbed, TestbedError, nearest};
use crate::topology::{MAX_NODES, Topology, TopologyError};
use crate::traffic::{Carried, Pattern, Run, Traffic, TrafficError};

/// Maximum number of points of a sweep.
pub const MAX_POINTS: usize = 1000;

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
    between: Between,
    leaf_nodes: usize,
    oversubscription: usize,
}

/// A setting of the traffic or of the network.
struct Knob {
    name: &'static str,
    about: &'static str,
    values: Values,
    set: fn(&mut Base, u64),
    get: fn(&Base) -> u64,
}

/// Allowed values of a setting.
enum Values {
    Numbers(u64, u64),
    Words(fn() -> Vec<&'static str>),
}

impl Knob {
    fn allowed(&self) -> String {
        match self.values {
            Values::Numbers(least, most) => format!("{least} to {most}"),
            Values::Words(words) => format!("one of {}", words().join(", ")),
        }
    }

    /// Parses a value. A word becomes its index.
    fn parse(&self, value: &str) -> Option<u64> {
        match self.values {
            Values::Numbers(least, most) => value.parse().ok().filter(|number| (least..=most).contains(number)),
            Values::Words(words) => {
                words().iter().position(|word| word.eq_ignore_ascii_case(value)).map(|at| at as u64)
            }
        }
    }

    fn show(&self, number: u64) -> String {
        match self.values {
            Values::Numbers(..) => number.to_string(),
            Values::Words(words) => words().get(number as usize).copied().unwrap_or_default().to_owned(),
        }
    }
}

fn protocols() -> Vec<&'static str> {
    Protocol::ALL.iter().map(|protocol| protocol.name()).collect()
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u64 {
    all.iter().position(|other| other == one).unwrap_or_default() as u64
}

const BETWEEN: [Between; 3] = [Between::Cable, Between::Switch, Between::Clos];
const KINDS: [Kind; 2] = [Kind::Bandwidth, Kind::Latency];

const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

const KNOBS: [Knob; 14] = [
    Knob {
        name: "pattern",
        about: "pattern of senders and receivers, with N from `senders`",
        values: Values::Words(|| Pattern::ALL.map(Pattern::name).to_vec()),
        set: |base, value| base.traffic.pattern = Pattern::ALL[value as usize],
        get: |base| place(&Pattern::ALL, &base.traffic.pattern),
    },
    Knob {
        name: "senders",
        about: "N of the pattern: senders of N:1 and N:N, receivers of 1:N",
        values: Values::Numbers(1, MAX_NODES as u64 - 1),
        set: |base, value| base.traffic.n = value as usize,
        get: |base| base.traffic.n as u64,
    },
    Knob {
        name: "measure",
        about: "the maximum rate of messages, or their latency (1:1 only)",
        values: Values::Words(|| vec!["bandwidth", "latency"]),
        set: |base, value| base.traffic.parameters.kind = KINDS[value as usize],
        get: |base| place(&KINDS, &base.traffic.parameters.kind),
    },
    Knob {
        name: "protocol",
        about: "protocol of the messages",
        values: Values::Words(protocols),
        set: |base, value| base.traffic.parameters.protocol = Protocol::ALL[value as usize],
        get: |base| place(&Protocol::ALL, &base.traffic.parameters.protocol),
    },
    Knob {
        name: "transport",
        about: "transport of the messages; over UC and UD they are unacknowledged SENDs without a protocol",
        values: Values::Words(|| vec!["rc", "uc", "ud"]),
        set: |base, value| base.traffic.parameters.transport = TRANSPORTS[value as usize],
        get: |base| place(&TRANSPORTS, &base.traffic.parameters.transport),
    },
    Knob {
        name: "size",
        about: "bytes of each message",
        values: Values::Numbers(0, 1 << 30),
        set: |base, value| {
            base.traffic.bytes = value as usize;
            base.traffic.parameters.sizes = vec![value as usize];
        },
        get: |base| base.traffic.bytes as u64,
    },
    Knob {
        name: "window",
        about: "maximum unacknowledged messages per connection",
        values: Values::Numbers(1, 1 << 16),
        set: |base, value| base.traffic.parameters.window = value as usize,
        get: |base| base.traffic.parameters.window as u64,
    },
    Knob {
        name: "batch",
        about: "messages per post",
        values: Values::Numbers(1, 1 << 10),
        set: |base, value| base.traffic.parameters.batch = value as usize,
        get: |base| base.traffic.parameters.batch as u64,
    },
    Knob {
        name: "depth",
        about: "receive buffers of each connection, or their equivalent in the protocol",
        values: Values::Numbers(1, 1 << 16),
        set: |base, value| base.traffic.parameters.depth = value as usize,
        get: |base| base.traffic.parameters.depth as u64,
    },
    Knob {
        name: "inline",
        about: "largest message in bytes that is inline in the work request",
        values: Values::Numbers(0, 1 << 10),
        set: |base, value| base.traffic.parameters.inline = value as usize,
        get: |base| base.traffic.parameters.inline as u64,
    },
    Knob {
        name: "messages",
        about: "messages of each connection",
        values: Values::Numbers(1, 1_000_000_000),
        set: |base, value| base.traffic.parameters.extent = Extent::Messages(value),
        get: |base| match base.traffic.parameters.extent {
            Extent::Messages(messages) => messages,
            Extent::Seconds(_) => 0,
        },
    },
    Knob {
        name: "network",
        about: "network between nodes: a cable between two, one switch, or a two-level Clos network",
        values: Values::Words(|| vec!["cable", "switch", "clos"]),
        set: |base, value| base.between = BETWEEN[value as usize],
        get: |base| place(&BETWEEN, &base.between),
    },
    Knob {
        name: "leaf_nodes",
        about: "nodes per leaf of a Clos network",
        values: Values::Numbers(1, MAX_NODES as u64),
        set: |base, value| base.leaf_nodes = value as usize,
        get: |base| base.leaf_nodes as u64,
    },
    Knob {
        name: "oversubscription",
        about: "rate of a leaf's nodes divided by the rate of its cables to spines; a divisor of `leaf_nodes`",
        values: Values::Numbers(1, MAX_NODES as u64),
        set: |base, value| base.oversubscription = value as usize,
        get: |base| base.oversubscription as u64,
    },
];

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting.
    pub name: &'static str,
    /// Description of the setting.
    pub about: &'static str,
    /// Value of the setting.
    pub value: String,
    /// Description of the allowed values.
    pub allowed: String,
}

/// Error of an invalid sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// Unknown parameter name.
    #[error("{name}: there is no such parameter; {known}")]
    Unknown {
        /// Name given.
        name: String,
        /// The nearest known name, or all known names.
        known: String,
    },
    /// Value that is not allowed.
    #[error("{name}: the value is {value}, allowed is {allowed}")]
    Value {
        /// Name of the parameter.
        name: String,
        /// Value given.
        value: String,
        /// Description of the allowed values.
        allowed: String,
    },
    /// Testbed value that is not allowed.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// Axis without a name or without values.
    #[error("{0}: give a parameter and its values, as in link.rate_gbps=25,100,400")]
    Axis(String),
    /// Two axes that vary the same parameter.
    #[error("{0} is varied twice: give all values of it in one list")]
    Twice(String),
    /// Too many points.
    #[error("the sweep has {points} points, allowed are {MAX_POINTS}")]
    Points {
        /// Number of points.
        points: usize,
    },
    /// A point that cannot be simulated.
    #[error("at {at}: {error}")]
    Point {
        /// Values of the point.
        at: String,
        /// Reason.
        error: TrafficError,
    },
    /// A point with an impossible topology.
    #[error("at {at}: {error}")]
    Topology {
        /// Values of the point.
        at: String,
        /// Reason.
        error: TopologyError,
    },
}

impl Base {
    /// Creates the default settings: 20,000 Send-Receive messages of 16 B between two nodes on one switch.
    pub fn new(testbed: &Testbed) -> Self {
        let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, 16);
        // Show the window and the depth in the settings, even if the user has not set them.
        parameters.depths_are_defaults = false;
        parameters.extent = Extent::Messages(20_000);
        let traffic = Traffic { pattern: Pattern::OneToOne, n: 1, parameters, bytes: 16 };
        let (between, leaf_nodes, oversubscription) = (Between::Switch, 16, 1);
        Self { testbed: testbed.clone(), traffic, between, leaf_nodes, oversubscription }
    }

    /// Returns the testbed.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// Returns the settings of traffic and network.
    pub fn settings(&self) -> Vec<Setting> {
        let setting = |knob: &Knob| Setting {
            name: knob.name,
            about: knob.about,
            value: knob.show((knob.get)(self)),
            allowed: knob.allowed(),
        };
        KNOBS.iter().map(setting).collect()
    }

    /// Sets a parameter of the testbed (as [`Testbed::with`]), of the traffic or of the network.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such parameter, or the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SweepError> {
        let value = value.trim();
        if name.contains('.') {
            self.testbed = self.testbed.with(name, value)?;
            return Ok(());
        }
        let Some(knob) = KNOBS.iter().find(|knob| knob.name == name) else {
            let known = nearest(name, KNOBS.iter().map(|knob| knob.name));
            let known = format!("{known}, or a parameter of the testbed, as link.rate");
            return Err(SweepError::Unknown { name: name.to_owned(), known });
        };
        let number = knob.parse(value).ok_or_else(|| SweepError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            allowed: knob.allowed(),
        })?;
        (knob.set)(self, number);
        Ok(())
    }

    /// Returns a value as a number with its unit; `None` for a word.
    fn number(&self, name: &str) -> Option<(f64, &'static str)> {
        if let Some(knob) = KNOBS.iter().find(|knob| knob.name == name) {
            let unit = if matches!(name, "size" | "inline") { "B" } else { "" };
            return matches!(knob.values, Values::Numbers(..)).then(|| ((knob.get)(self) as f64, unit));
        }
        let parameter = self.testbed.parameters().find(|parameter| {
            name.strip_prefix(&parameter.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        })?;
        Some((parameter.value.parse().ok()?, parameter.unit))
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
        Ok(Self { name: name.trim().to_owned(), values })
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

    /// Returns the size of each message in bytes.
    pub fn bytes(&self) -> usize {
        self.base.traffic.bytes
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
        for (index, axis) in axes.iter().enumerate() {
            if axes[..index].iter().any(|other| other.name == axis.name) {
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
    fn errors_name_the_parameter_and_the_allowed_values() {
        for (axes, words) in [
            (&["link.rat=1"][..], "link.rat: there is no such field; the nearest is link.rate"),
            (&["sise=1"], "sise: there is no such parameter; the nearest is size"),
            (&["quux=1"], "there is no such parameter; allowed is pattern, senders"),
            (&["link.rate_gbps=25,0"], "link.rate_gbps: the value is 0 Gb/s, allowed is 1 Mb/s to 100000 Gb/s"),
            (&["window=0"], "window: the value is 0, allowed is 1 to 65536"),
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
            (&["batch=65"], "at batch=65: "),
            (&["transport=tcp"], "transport: the value is tcp, allowed is one of rc, uc, ud"),
            (&["transport=ud", "size=5000"], "at transport=ud, size=5000: "),
            (&["transport=uc", "protocol=direct-read"], "rc for protocols, since messages"),
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
    }

    #[test]
    fn each_setting_accepts_its_default_value() {
        let mut base = base();
        for setting in base.settings() {
            base.set(setting.name, &setting.value).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!(base.settings().len(), KNOBS.len());
    }
}
