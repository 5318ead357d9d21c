//! Sweeps with a name on the command line.

use super::{Axis, in_sweeps};

/// Settings and axes of a sweep with a name. Other settings and axes can replace them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Settings, in the order in which [`Base::set`](super::Base::set) takes them.
    settings: &'static [(&'static str, &'static str)],
    /// Axes, each with its values.
    axes: &'static [(&'static str, &'static [&'static str])],
}

/// N:1 over a two-level Clos network of 2 to 1,024 nodes: three protocols, over switches that pause senders and over
/// the same switches if they drop frames.
///
/// A port may hold 512 KiB, a 32nd of the packet memory of 16 MiB that is stated for switches of the testbed's class.
/// Above the 128 KiB at which senders pause, it has room for what is on the way from the 63 other ports of a spine.
pub const MANY_TO_ONE: Preset = Preset {
    settings: &[
        ("pattern", "N:1"),
        ("network", "clos"),
        ("size", "512"),
        ("total_messages", "50000"),
        // Loss is found after 4 ms. Senders of Shared-Write read the ring's state all the time while they wait.
        ("timeout", "10"),
        ("switch.resume_at", "64KiB"),
        ("switch.pause_at", "128KiB"),
        ("switch.queue", "512KiB"),
    ],
    axes: &[
        ("protocol", &["send-receive", "direct-read", "shared-write"]),
        ("switch.when_full", &["pause", "drop"]),
        ("senders", &["1", "3", "7", "15", "31", "63", "127", "255", "511", "1023"]),
    ],
};

impl Preset {
    /// Returns the settings and axes of the preset, changed by others. A given setting or axis replaces the axis of the
    /// same name. Given settings follow those of the preset, so that they replace their values.
    pub fn with(&self, settings: &[(String, String)], axes: Vec<Axis>) -> (Vec<(String, String)>, Vec<Axis>) {
        let settings: Vec<(String, String)> =
            settings.iter().map(|(name, value)| (in_sweeps(name).to_owned(), value.clone())).collect();
        let own = self.settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let all: Vec<(String, String)> = own.chain(settings.iter().cloned()).collect();
        let is_given =
            |name: &str| settings.iter().any(|(given, _)| given == name) || axes.iter().any(|given| given.name == name);
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        let own = self.axes.iter().filter(|(name, _)| !is_given(name));
        let own: Vec<Axis> = own.map(|&(name, values)| Axis { name: name.to_owned(), values: owned(values) }).collect();
        (all, own.into_iter().chain(axes).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Base, Sweep};
    use super::*;
    use crate::testbed::by_name;
    use crate::topology::Topology;

    fn sweep(settings: &[(&str, &str)], axes: &[&str]) -> Sweep {
        let settings: Vec<_> = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let axes = axes.iter().map(|axis| axis.parse().expect("an axis")).collect();
        let (settings, axes) = MANY_TO_ONE.with(&settings, axes);
        let mut base = Base::new(by_name("connectx5-100g").expect("a built-in testbed"));
        settings.iter().for_each(|(name, value)| base.set(name, value).unwrap_or_else(|error| panic!("{error}")));
        Sweep::new(&base, axes, 4 << 30).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn many_to_one_reaches_1024_nodes_with_equally_many_messages() {
        let sweep = sweep(&[], &[]);
        assert_eq!(sweep.points().len(), 3 * 2 * 10);
        let last = sweep.points().last().expect("a point");
        assert_eq!(last.values, ["shared-write", "drop", "1023"]);
        assert_eq!(last.topology(), Topology::Clos { nodes: 1024, hosts: 16, spines: 16 });
        for point in sweep.points() {
            assert!((49_000..=50_000).contains(&point.messages()), "{:?}: {}", point.values, point.messages());
        }
    }

    #[test]
    fn given_settings_and_axes_replace_those_of_the_preset() {
        let settings = [("protocol", "send-receive"), ("total_messages", "10000000"), ("switch.when_full", "pause")];
        let sweep = sweep(&settings, &["senders=1023"]);
        let values: Vec<_> = sweep.points().iter().map(|point| point.values.join(" ")).collect();
        assert_eq!(values, ["1023"]);
        let messages = sweep.points()[0].messages();
        assert!((9_999_000..=10_000_000).contains(&messages), "{messages}");
        // The estimate of the memory does not depend on the number of messages.
        assert!(sweep.points()[0].memory() < 2 << 30, "{}", sweep.points()[0].memory());
    }
}
