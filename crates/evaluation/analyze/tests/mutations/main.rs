//! Mutations of captures, each of which `check` must find. A program of its own, since its tables are for outsiders:
//! `cargo test -p doorbell-analyze --test mutations` reads each `*.toml` beside this file. README.md has the format.

mod edit;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use doorbell_analyze::check::{RULES, Report, check};
use doorbell_analyze::decode::Options;
use edit::Capture;
use table::{Mutation, Settings, Table};

const CAPTURES: [(&str, &[u8]); 5] = [
    ("own.pcap", include_bytes!("../data/own.pcap")),
    ("rxe.pcap", include_bytes!("../../../../rnic/wire/tests/data/rxe.pcap")),
    ("rxe-both.pcap", include_bytes!("../../../../rnic/wire/tests/data/rxe-both.pcap")),
    ("rxe-loss.pcap", include_bytes!("../../../../rnic/wire/tests/data/rxe-loss.pcap")),
    ("rxe-rnr.pcap", include_bytes!("../../../../rnic/wire/tests/data/rxe-rnr.pcap")),
];

/// Returns all tables with their names, in the order of the names.
fn tables() -> BTreeMap<String, Table> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutations"));
    let mut tables = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let table = Table::read(&std::fs::read_to_string(&path).unwrap());
            tables.insert(name.clone(), table.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    tables
}

fn judge(file: &[u8], settings: &Settings) -> Report {
    let report = check(file, &Options::default(), &settings.limits()).unwrap();
    assert_eq!(report.stopped, None);
    report
}

fn capture(name: &str) -> Result<Capture, String> {
    let known = CAPTURES.iter().find(|(known, _)| *known == name);
    let (_, bytes) = known.ok_or_else(|| {
        let names: Vec<_> = CAPTURES.iter().map(|(name, _)| *name).collect();
        format!("capture {name:?}: must be one of {names:?}")
    })?;
    Capture::read(bytes)
}

/// Applies a mutation. Returns an error if the unchanged capture has a finding, or the mutation has none.
fn missed(mutation: &Mutation) -> Result<(), String> {
    let mut capture = capture(&mutation.capture)?;
    let before = judge(&capture.file(), &mutation.settings);
    if let Some(finding) = before.findings.first() {
        return Err(format!("the unchanged capture has a finding: {finding:?}"));
    }
    for change in &mutation.change {
        capture.apply(change)?;
    }
    let report = judge(&capture.file(), &mutation.settings);
    let rule = mutation.rule.as_deref();
    if report.findings.iter().any(|finding| rule.is_none_or(|rule| finding.rule == rule)) {
        return Ok(());
    }
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect();
    Err(format!("not found by {}; found: {found:?}", rule.unwrap_or("any rule")))
}

#[test]
fn unchanged_captures_have_no_finding() {
    for (name, bytes) in CAPTURES {
        for complete in [false, true] {
            for file in [bytes.to_vec(), Capture::read(bytes).unwrap().file()] {
                let report = judge(&file, &Settings { complete, ..Settings::default() });
                assert!(report.packets > 100, "{name}: {} packets", report.packets);
                assert!(report.findings.is_empty(), "{name}, complete: {complete}: {:#?}", report.findings);
            }
        }
    }
}

#[test]
fn each_mutation_is_found() {
    let mut count = 0;
    let mut failures = Vec::new();
    for (name, table) in tables() {
        for (number, mutation) in table.mutation.iter().enumerate() {
            count += 1;
            if let Err(why) = missed(mutation) {
                failures.push(format!("{name}, mutation {}, {}: {why}", number + 1, mutation.violates));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} mutations:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 2 * RULES.len(), "{count} mutations");
}

#[test]
fn each_rule_has_two_mutations_of_our_captures_and_of_rxe() {
    let tables = tables();
    assert_eq!(tables["blind.toml"].mutation.len(), 20);
    let all: Vec<&Mutation> = tables.values().flat_map(|table| &table.mutation).collect();
    let mut missing = Vec::new();
    for rule in RULES {
        for is_own in [true, false] {
            let is_one =
                |it: &&&Mutation| it.rule.as_deref() == Some(rule.name) && it.capture.starts_with("own") == is_own;
            let count = all.iter().filter(is_one).count();
            if count < 2 {
                missing.push(format!("{} has {count} mutations of {}", rule.name, if is_own { "ours" } else { "rxe" }));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    for rule in all.iter().filter_map(|mutation| mutation.rule.as_deref()) {
        assert!(RULES.iter().any(|known| known.name == rule), "no rule has the name {rule}");
    }
}

#[test]
fn wrong_tables_have_a_sentence() {
    let error = |text: &str| Table::read(text).unwrap_err();
    assert!(error("[[mutation]]\nviolates = \"x\"\ncapture = \"own.pcap\"\nchange = []\nextra = 1").contains("extra"));
    let of = |change: &str| {
        let text = format!("[[mutation]]\nviolates = \"x\"\ncapture = \"own.pcap\"\nchange = [{change}]");
        missed(&Table::read(&text).unwrap().mutation[0]).unwrap_err()
    };
    for (change, words) in [
        ("{ packet = { number = 1000000 }, remove = true }", "no packet"),
        ("{ packet = { opcode = \"RC Nonsense\" }, remove = true }", "RC Nonsense"),
        ("{ packet = { opcode = \"RC Acknowledge\" }, set = { \"aeth.nonsense\" = 1 } }", "aeth.nonsense"),
        ("{ packet = { opcode = \"RC Acknowledge\" }, set = { \"reth.length\" = 1 } }", "has no reth"),
        ("{ packet = { opcode = \"RC Acknowledge\" }, set = { \"bth.version\" = 16 } }", "has 4 bits"),
        ("{ packet = { opcode = \"RC Acknowledge\" } }", "changes nothing"),
    ] {
        let found = of(change);
        assert!(found.contains(words), "{change}: {found}");
    }
}
