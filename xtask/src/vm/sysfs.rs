//! Comparison of the software RNIC's sysfs files with the kernel's files for `rdma_rxe`, by path and kind of value. A
//! table lists each allowed difference with its reason.

use std::collections::{BTreeMap, BTreeSet};

/// Allowed differences, each with the reason. The first text is a path, or a prefix of paths followed by a star. A
/// difference that is not listed is an error. A listed difference that does not occur is also an error.
const DIFFERENCES: &[(&str, &str)] = &[
    ("device/parent", "file only of rxe: its network interface"),
    ("device/power*", "power management, which does not apply to a software device"),
    ("verbs/power*", "the same"),
    ("device/ports/1/hw_counters/*", "each driver has other names; only `lifespan` is common"),
    ("device/ports/1/counters*", "rxe has no such counters; adapters have"),
    ("device/device", "link to the parent, which adapters have (a PCI device); rxe has no parent device"),
    ("verbs/device", "the same"),
    ("device/hca_type", "adapters have it, and ibstat shows it"),
    ("device/fw_ver", "rxe leaves it empty; adapters have it, and ibv_devinfo shows it"),
    ("device/ports/1/cm_*", "counters of the kernel's connection manager, which Doorbell does not use"),
    ("device/hw_rev", "adapters have it, and ibstat shows it"),
    ("device/board_id", "the same, for ibv_devinfo"),
    ("device/tc*", "NVIDIA's drivers have it, and UCX reads it"),
];

/// Compares the lists of files of rxe and the software RNIC.
pub(super) fn compare(rxe: &str, own: &str) -> Result<(), String> {
    let (rxe, own) = (parse(rxe)?, parse(own)?);
    let mut unused: BTreeSet<&str> = DIFFERENCES.iter().map(|(pattern, _)| *pattern).collect();
    let mut unknown = Vec::new();
    let paths: BTreeSet<&String> = rxe.keys().chain(own.keys()).collect();
    for path in &paths {
        let (theirs, ours) = (rxe.get(*path), own.get(*path));
        if theirs.is_some_and(|theirs| ours.is_some_and(|ours| !theirs.is_disjoint(ours))) {
            continue;
        }
        match DIFFERENCES.iter().find(|(pattern, _)| matches(pattern, path)) {
            Some((pattern, _)) => drop(unused.remove(pattern)),
            None => unknown.push(format!("{path}: rxe has {}, Doorbell has {}", words(theirs), words(ours))),
        }
    }
    unknown.extend(unused.iter().map(|pattern| format!("{pattern} is listed as a difference, but is equal")));
    eprintln!("sysfs: {} paths of rxe, {} paths of Doorbell", rxe.len(), own.len());
    if unknown.is_empty() { Ok(()) } else { Err(unknown.join("\n")) }
}

fn words(kinds: Option<&BTreeSet<String>>) -> String {
    kinds.map_or("nothing".to_owned(), |kinds| kinds.iter().cloned().collect::<Vec<_>>().join(" or "))
}

fn matches(pattern: &str, path: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == path, |start| path.starts_with(start))
}

/// Parses a list of files. Returns the kinds of values at each path. All entries of a table, such as the GIDs, count as
/// one path.
fn parse(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let (path, what) = line.split_once('\t').ok_or_else(|| format!("{line:?} has no path and kind"))?;
        let kind = match what.strip_prefix("value ") {
            Some(value) => kind(value.trim()),
            None => what.to_owned(),
        };
        let in_table = ["gids/", "types/", "ndevs/", "pkeys/"].iter().any(|table| path.contains(table));
        let path = match path.rsplit_once('/') {
            Some((folder, number)) if in_table && is_number(number) => format!("{folder}/N"),
            _ => path.to_owned(),
        };
        // Skip unused entries of a table, which cannot be read.
        if !(in_table && kind == "nothing") {
            found.entry(path).or_default().insert(kind);
        }
    }
    Ok(found)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the kind of a value.
fn kind(value: &str) -> String {
    let groups: Vec<&str> = value.split(':').collect();
    if value.is_empty() {
        "nothing".to_owned()
    } else if is_number(value) {
        "a number".to_owned()
    } else if value.strip_prefix("0x").is_some_and(is_hexadecimal) {
        // Flags and keys have a fixed number of digits. Other numbers have no leading zeros.
        let digits = value.len() - 2;
        if digits >= 4 { format!("{digits} hexadecimal digits") } else { "a hexadecimal number".to_owned() }
    } else if groups.len() > 2 && groups.iter().all(|group| group.len() == 4 && is_hexadecimal(group)) {
        format!("{} groups of digits", groups.len())
    } else if groups.len() == 2 && groups.iter().all(|group| is_number(group)) {
        "two numbers".to_owned()
    } else if let Some((number, word)) = value.split_once(": ") {
        let state = ["ACTIVE", "LinkUp", "CA"].iter().find(|known| **known == word);
        match state {
            Some(state) if is_number(number) => format!("number and {state}"),
            _ => "a text".to_owned(),
        }
    } else if value.contains(" Gb/sec (") && value.ends_with(')') {
        "a rate".to_owned()
    } else if ["RoCE v2", "Ethernet"].contains(&value) {
        value.to_owned()
    } else {
        "a text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_kinds() {
        for (value, expected) in [
            ("", "nothing"),
            ("17", "a number"),
            ("0x0", "a hexadecimal number"),
            ("0xffff", "4 hexadecimal digits"),
            ("0x00010000", "8 hexadecimal digits"),
            ("5054:00ff:fe12:3456", "4 groups of digits"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "8 groups of digits"),
            ("231:192", "two numbers"),
            ("4: ACTIVE", "number and ACTIVE"),
            ("1: DOWN", "a text"),
            ("2.5 Gb/sec (1X SDR)", "a rate"),
            ("100 Gb/sec (4X EDR)", "a rate"),
            ("RoCE v2", "RoCE v2"),
            ("IB/RoCE v1", "a text"),
            ("lo", "a text"),
        ] {
            assert_eq!(kind(value), expected, "{value:?}");
        }
    }

    #[test]
    fn unlisted_and_unused_differences_are_errors() {
        let listed: String =
            DIFFERENCES.iter().map(|(pattern, _)| format!("{}x\tvalue 1\n", pattern.trim_end_matches('*'))).collect();
        let listed = DIFFERENCES.iter().fold(listed, |text, (pattern, _)| {
            if pattern.ends_with('*') { text } else { text.replace(&format!("{pattern}x\t"), &format!("{pattern}\t")) }
        });
        let both = "device/lid\tvalue 0x0\ndevice/gids/0\tvalue \ndevice/gids/1\tvalue 0000:0000\n";
        compare(&format!("{both}{listed}"), both).unwrap();
        compare(both, &format!("{both}{listed}")).unwrap();
        let error = compare(&format!("{both}{listed}"), "device/lid\tvalue 0\n").unwrap_err();
        assert!(error.contains("device/lid: rxe has a hexadecimal number, Doorbell has a number"), "{error}");
        assert!(compare(both, both).unwrap_err().contains("is listed as a difference, but is equal"));
        assert!(compare("nothing", both).is_err());
    }
}
