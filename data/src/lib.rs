//! Data files of Doorbell as text, built into the program. The crates that use a file parse and check its text.
//!
//! Each data file exists only once, in the folder of this crate. The package of this crate therefore contains all files
//! that it needs to build.

#![no_std]

/// A data file of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Name without folder and extension, such as `connectx5`.
    pub name: &'static str,
    /// Path in the repository, for error messages.
    pub path: &'static str,
    /// Contents.
    pub text: &'static str,
}

macro_rules! files {
    ($folder:literal: $($name:literal),+) => {
        &[$(File {
            name: $name,
            path: concat!("data/", $folder, "/", $name, ".toml"),
            text: include_str!(concat!("../", $folder, "/", $name, ".toml")),
        }),+]
    };
}

/// Published figures, one file per testbed. `doorbell-claims` documents the layout.
pub const PUBLISHED: &[File] = files!("published": "t1", "t2", "t3");

/// Testbeds of the simulator. `doorbell-sim` documents the layout.
pub const TESTBEDS: &[File] = files!("testbeds": "connectx5-100g", "counters-100g", "connectx5-100g-far");

/// Hardware of the simulator's testbeds. The files have the same layout as testbeds.
pub const HARDWARE: &[File] = files!("hardware": "connectx5", "counters-rnic", "xeon-gold-6152", "ethernet-100g");

/// Parameters of the performance model, one file per published testbed. `doorbell-model` documents the layout.
pub const PARAMETERS: &[File] = files!("parameters": "t1", "t2", "t3");

/// Fault plans. `doorbell-fabric` documents the layout. The head of each file has the behaviour that IBTA
/// requires.
pub const FAULT_PLANS: &[File] = files!("fault-plans":
    "lost-first", "lost-middle", "lost-last", "lost-ack", "lost-nak",
    "lost-read-response", "duplicate-requests", "rnr-then-success", "late-ack", "corrupted-icrc",
    "psn-wrap", "atomic-replay", "black-hole", "ghost-packets", "port-flap",
    "bad-completion", "refused-post", "slow-completion", "qp-fatal-event"
);

/// Names of a testbed. Each command accepts both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// Short name, which its files in `published/` and `parameters/` have: `t1`.
    pub short: &'static str,
    /// Long name, which its file in `testbeds/` has: `connectx5-100g`.
    pub long: &'static str,
}

/// Names of all testbeds.
pub const NAMES: &[Names] = &[
    Names { short: "t1", long: "connectx5-100g" },
    Names { short: "t2", long: "counters-100g" },
    Names { short: "t3", long: "connectx5-100g-far" },
];

/// Returns both names of the testbed with this short or long name, independent of case.
pub fn names(name: &str) -> Option<&'static Names> {
    NAMES.iter().find(|names| [names.short, names.long].iter().any(|own| own.eq_ignore_ascii_case(name)))
}

/// Reasons why the performance model makes no prediction for some published figures.
pub const LACKS: File = File { name: "lacks", path: "data/lacks.toml", text: include_str!("../lacks.toml") };
