use doorbell_model::check::Predictor as _;
use doorbell_record::{StorePoint, Strategy};
use doorbell_wire::PathMtu;
use proptest::prelude::*;

use super::*;
use crate::reproduce::{Effort, Runs};
use crate::time::{PerByte, Ps};

/// A testbed with all values in its own file.
static T1: LazyLock<String> = LazyLock::new(|| {
    let own = doorbell_data::TESTBEDS[0].text;
    let head = own[..own.find("\n[").unwrap()].lines().filter(|line| !line.starts_with("parts = "));
    let is_part = |file: &&doorbell_data::File| own.contains(&format!("\"{}\"", file.name));
    let parts = doorbell_data::HARDWARE.iter().filter(is_part);
    let parts = parts.flat_map(|file| file.text[file.text.find("\n[").unwrap()..].lines());
    head.chain(parts).map(|line| format!("{line}\n")).collect()
});

fn t1() -> &'static Testbed {
    by_name("connectx5-100g").unwrap()
}

#[test]
fn each_value_of_a_testbed_has_a_source() {
    for testbed in all() {
        assert_eq!(testbed.parameters().count(), FIELDS.len());
        for parameter in testbed.parameters() {
            assert!(parameter.source.len() > 8, "{} of {}", parameter.path, testbed.name);
        }
        assert_eq!(by_name(&testbed.name), Some(testbed));
        assert_eq!(by_name(testbed.published.as_deref().unwrap()), Some(testbed));
    }
    assert_eq!(by_name("connectx9"), None);
}

fn nic_of(text: &str) -> Option<toml::Table> {
    text.parse::<toml::Table>().unwrap().remove("nic").map(|nic| nic.try_into().unwrap())
}

/// Two testbeds with one NIC share its values, so that a fit on one of them is a prediction for the other.
#[test]
fn a_nic_has_at_most_eight_fitted_values_and_no_testbed_replaces_any() {
    let mut nics = 0;
    for file in doorbell_data::HARDWARE {
        let Some(nic) = nic_of(file.text) else { continue };
        nics += 1;
        let fitted = nic.iter().filter(|(_, entry)| entry.get("fitted").is_some());
        let fitted: Vec<(&String, &str)> = fitted.map(|(name, it)| (name, it["source"].as_str().unwrap())).collect();
        assert!((1..=8).contains(&fitted.len()), "{}: {fitted:?}", file.path);
        for (name, source) in fitted {
            let rows = doorbell_claims::all().iter().flat_map(|testbed| &testbed.rows);
            let named = rows.filter(|row| crate::reproduce::names(source, &row.id)).count();
            assert!(named > 0, "{}: the source of {name} names no published row: {source}", file.path);
        }
    }
    assert_eq!(nics, 2);
    for file in doorbell_data::TESTBEDS {
        assert_eq!(nic_of(file.text), None, "{} replaces values of its NIC", file.path);
    }
    let [t3, t2] = ["connectx5-100g-far", "counters-100g"].map(|name| by_name(name).unwrap());
    assert_eq!(t1().nic, t3.nic);
    assert_ne!(t1().nic, t2.nic);
}

/// Environment variable with which the test writes the table of fitted values.
const UPDATE: &str = "DOORBELL_UPDATE_FITTED";

/// Returns a fitted value's name, its number, the testbeds that have it, and the published rows on which it was fitted.
fn fitted_values() -> Vec<(String, String, Vec<&'static str>, Vec<&'static str>)> {
    let mut all: Vec<(String, String, Vec<&str>, Vec<&str>)> = Vec::new();
    for published in doorbell_claims::all() {
        let testbed = by_name(&published.name).unwrap();
        for parameter in testbed.parameters().filter(|parameter| parameter.is_fitted) {
            let number = format!("{} {}", parameter.value, parameter.unit).trim_end().to_owned();
            let rows = doorbell_claims::all().iter().flat_map(|it| &it.rows).map(|row| row.id.as_str());
            let rows: Vec<&str> = rows.filter(|id| crate::reproduce::names(parameter.source, id)).collect();
            match all.iter_mut().find(|it| it.0 == parameter.path && it.1 == number && it.3 == rows) {
                Some(same) => same.2.push(&published.name),
                None => all.push((parameter.path, number, vec![published.name.as_str()], rows)),
            }
        }
    }
    all
}

/// Returns the tables of fitted values and of the rows on which nothing was fitted.
fn fitted_tables() -> String {
    let mut text = String::from("| fitted value | number | testbeds | fitted on | rows |\n|---|---|---|---|---|\n");
    let mut line = |name: &str, number: &str, testbeds: &[&str], rows: &[&str]| {
        let of = |published: &&doorbell_claims::Testbed| rows.iter().any(|id| published.row(id).is_some());
        let fitted_on: Vec<&str> = doorbell_claims::all().iter().filter(of).map(|it| it.name.as_str()).collect();
        let rows: Vec<String> = rows.iter().map(|id| format!("`{id}`")).collect();
        let (testbeds, fitted_on, rows) = (testbeds.join(", "), fitted_on.join(", "), rows.join(", "));
        text += &format!("| {name} | {number} | {testbeds} | {fitted_on} | {rows} |\n");
    };
    for (name, number, testbeds, rows) in fitted_values() {
        line(&format!("`{name}`"), &number, &testbeds, &rows);
    }
    for published in doorbell_claims::all() {
        for row in &published.rows {
            for name in &row.fitted {
                let amount = row.configuration.amounts().find(|(field, _)| field == name);
                let number = amount.map_or("yes".to_owned(), |(_, amount)| amount.to_string());
                line(&format!("`{name}` of the row"), &number, &[published.name.as_str()], &[row.id.as_str()]);
            }
        }
    }
    let store = StorePoint::published(Strategy::Optimistic, 1);
    line(
        "pause of a client of the store",
        &format!("{} us for each client", store.client_us),
        &["T3"],
        &[StorePoint::FITTED_ON],
    );
    text += "\n| testbed | numbers | fitted on | predicted |\n|---|---:|---:|---:|\n";
    for published in doorbell_claims::all() {
        let runs = Runs::new(by_name(&published.name).unwrap(), Effort::QUICK);
        let fitted = published.rows.iter().filter(|row| !row.fitted.is_empty() || runs.is_fitted(&row.id)).count();
        let all = published.rows.len();
        text += &format!("| {} | {all} | {fitted} | {} |\n", published.name, all - fitted);
    }
    text
}

#[test]
fn the_page_has_all_fitted_values_and_the_rows_on_which_they_were_fitted() {
    const BEGIN: &str = "<!-- generated: `crates/evaluation/sim/src/testbed/tests.rs` -->\n\n";
    const END: &str = "\n<!-- end of generated part -->";
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reproduction.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (stored, after) = rest.split_once(END).unwrap();
    let tables = fitted_tables();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{tables}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(stored, tables, "{UPDATE}=1 writes the tables anew");
}

/// Each value that T1 and T3 share was fitted on rows of one of them, so the rows of the other one are predictions.
#[test]
fn a_value_of_the_shared_nic_is_fitted_on_one_testbed() {
    let shared: Vec<_> = fitted_values().into_iter().filter(|it| it.2 == ["T1", "T3"]).collect();
    assert_eq!(shared.iter().filter(|it| it.0.starts_with("nic.")).count(), 7, "{shared:?}");
    for (name, _, _, rows) in shared {
        let of = |published: &&doorbell_claims::Testbed| rows.iter().any(|id| published.row(id).is_some());
        assert_eq!(doorbell_claims::all().iter().filter(of).count(), 1, "{name}: {rows:?}");
    }
}

#[test]
fn values_are_in_base_units() {
    let t1 = t1();
    assert_eq!(t1.cpu.post_list + t1.cpu.post_wr, Ps::from_ns(120));
    assert_eq!(t1.cpu.copy_per_byte, PerByte(100_000));
    assert_eq!(t1.pcie.rate.bits_per_s(), 126_030_769_230);
    assert_eq!(t1.link.path_mtu, PathMtu::Mtu4096);
    assert_eq!(t1.switch.queue, 16 << 20);
    assert_eq!((t1.nic.atomic_lock, t1.switch.when_full), (LockScope::Address, WhenFull::Pause));
}

#[test]
fn errors_name_line_field_and_allowed_values() {
    let line_of = |needle: &str| 1 + T1.lines().position(|line| line.contains(needle)).unwrap();
    for (old, new, words) in [
        (
            "post_wr = { value = 1.143",
            "post_wr = { value = -1.143",
            &["cpu.post_wr", "-1.143 ns, which is negative", "0 ps to 10000 ms"][..],
        ),
        ("post_wr = { value = 1.143", "post_wr = { value = 0.00001", &["cpu.post_wr", "whole numbers of ps"]),
        ("post_wr = { value = 1.143", "post_wr = { value = nan", &["cpu.post_wr", "nan is no decimal number"]),
        ("post_wr = { value = 1.143", "post_wr = { value = 0x10", &["cpu.post_wr", "allowed is a decimal number"]),
        (
            "post_wr = { value = 1.143",
            "post_wr = { value = \"fast\"",
            &["cpu.post_wr", "the value is a string, allowed is a decimal number"],
        ),
        ("post_wr = { value = 1.143", "post_wr = { value = 1e40", &["cpu.post_wr", "the value is 1e40 ns, allowed is"]),
        (
            "post_wr = { value = 1.143, unit = \"ns\"",
            "post_wr = { value = 1.143, unit = \"B\"",
            &["cpu.post_wr.unit", "the unit is \"B\", allowed is one of \"ps\", \"ns\", \"us\", \"ms\""],
        ),
        (
            "post_wr = { value = 1.143, unit = \"ns\"",
            "post_wr = { value = 1.143",
            &["cpu.post_wr.unit", "the field is missing, allowed is \"ps\""],
        ),
        (
            "post_wr = { value = 1.143, unit",
            "post_wr = { valeu = 1.143, unit",
            &["cpu.post_wr.valeu", "the nearest is value"],
        ),
        ("post_wr = ", "post_wrs = ", &["cpu.post_wrs", "there is no such field; the nearest is post_wr"]),
        ("[cpu]", "[cqu]", &["cqu", "the nearest is cpu"]),
        (
            "cached_queue_pairs = { value = 1024, unit = \"count\"",
            "cached_queue_pairs = { value = 0, unit = \"count\"",
            &["nic.cached_queue_pairs", "the value is 0, allowed is 1 to"],
        ),
        (
            "path_mtu = { value = 4096",
            "path_mtu = { value = 1500",
            &["link.path_mtu", "the value is 1500 B, allowed is one of 256, 512, 1024, 2048, 4096 B"],
        ),
        (
            "forwarding = { value = \"cut-through\"",
            "forwarding = { value = \"fast\"",
            &["switch.forwarding", "allowed is one of \"cut-through\", \"store-and-forward\""],
        ),
        (
            "forwarding = { value = \"cut-through\"",
            "forwarding = { unit = \"ns\", value = \"cut-through\"",
            &["switch.forwarding.unit", "a choice has no unit"],
        ),
        (
            "pause_at = { value = 1,",
            "pause_at = { value = 32,",
            &["switch.pause_at", "allowed is at most switch.queue"],
        ),
        (
            "resume_at = { value = 512",
            "resume_at = { value = 2048",
            &["switch.resume_at", "allowed is at most switch.pause_at"],
        ),
        ("doorbell-testbed/1", "doorbell-testbed/2", &["schema", "allowed is \"doorbell-testbed/1\""]),
        ("name = \"connectx5-100g\"", "name = \"\"", &["name", "the text is empty"]),
        ("[link]", "[link", &["the file", "the text is no TOML"]),
    ] {
        let at = line_of(old);
        let error = Testbed::from_toml("my.toml", &T1.replacen(old, new, 1)).expect_err(new).to_string();
        assert!(error.starts_with(&format!("my.toml:{at}: ")), "line {at} is missing in: {error}");
        for word in words {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
    }
}

#[test]
fn errors_of_missing_fields_name_the_line_of_the_group() {
    let without: String =
        T1.lines().filter(|line| !line.starts_with("post_wr ")).map(|line| format!("{line}\n")).collect();
    let at = 1 + T1.lines().position(|line| line == "[cpu]").unwrap();
    let error = Testbed::from_toml("my.toml", &without).unwrap_err();
    assert_eq!((error.place.as_str(), error.field.as_str()), (format!("my.toml:{at}").as_str(), "cpu.post_wr"));
    assert!(error.problem.contains("the field is missing") && error.problem.contains("\"ns\""), "{}", error.problem);
    let error = Testbed::from_toml(
        "my.toml",
        &T1.replacen(
            ", source = \"Assumed: far below the pool, far above what a burst of one connection needs.\"",
            "",
            1,
        ),
    )
    .unwrap_err();
    assert!(error.to_string().contains("switch.pause_at.source: the field is missing"), "{error}");
}

#[test]
fn hardware_provides_the_values_that_a_testbed_does_not_replace() {
    let head = "schema = \"doorbell-testbed/1\"\nname = \"n\"\nabout = \"a\"\nhardware = \"h\"\nopen_points = []\n";
    let parts = "parts = [\"connectx5\", \"xeon-gold-6152\", \"ethernet-100g\"]\n";
    let read = |text: &str| Testbed::from_toml("my.toml", &format!("{head}{text}"));
    let own = "[link]\nrate = { value = 25, unit = \"Gb/s\", source = \"Measured here.\" }\n";
    let testbed = read(&format!("{parts}{own}")).unwrap();
    assert_eq!(testbed.link.rate.bits_per_s(), 25_000_000_000);
    assert_eq!((&testbed.cpu, &testbed.nic), (&t1().cpu, &t1().nic));
    for (text, words) in [
        (
            parts.replace("connectx5", "connectx"),
            "my.toml:6: parts: there is no hardware \"connectx\"; the nearest is connectx5",
        ),
        (
            parts.replace("xeon-gold-6152", "connectx5"),
            "my.toml:6: parts: two parts have nic.units, allowed is one part",
        ),
        (parts.replace("\"connectx5\", ", ""), "my.toml:1: nic: the field is missing"),
        ("parts = 7\n".to_owned(), "my.toml:6: parts: the value is an integer, allowed is a list of texts"),
        (
            format!("{parts}[switch]\nqueue = {{ value = 1, unit = \"KiB\", source = \"Here.\" }}\n"),
            "data/hardware/ethernet-100g.toml:",
        ),
    ] {
        let error = read(&text).expect_err(&text).to_string();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn a_value_can_be_replaced_with_or_without_a_unit() {
    let t1 = t1();
    for (path, value) in [
        ("link.rate", "25 Gb/s"),
        ("link.rate", "25Gb/s"),
        ("link.rate_gbps", "25"),
        ("link.rate", "25"),
        ("link.rate_mbps", "25e3"),
    ] {
        assert_eq!(t1.with(path, value).expect(path).link.rate.bits_per_s(), 25_000_000_000, "{path} {value}");
    }
    assert_eq!(t1.with("switch.when_full", "drop").unwrap().switch.when_full, WhenFull::Drop);
    assert_eq!(t1.with("cpu.cache", "1MiB").unwrap().cpu.cache, 1 << 20);
    let replaced = t1.with("nic.unit_request", "50").unwrap();
    let parameter = replaced.parameters().find(|it| it.path == "nic.unit_request").unwrap();
    assert_eq!((parameter.value.as_str(), parameter.unit, parameter.is_fitted), ("50", "ns", false));

    for (path, value, words) in [
        ("link.rat", "1", "the nearest is link.rate"),
        ("link.rate_ns", "1", "there is no such field"),
        ("link.rate_gbps", "1 Gb/s", "give only one unit"),
        ("link.rate", "0", "the value is 0 Gb/s, allowed is 1 Mb/s to"),
        ("link.rate", "1 ns", "the unit is \"ns\", allowed is one of \"b/s\""),
        ("link.rate", "", "is no decimal number"),
        ("link.rate", "fast", "fast is no decimal number, allowed is 1 Mb/s to"),
        ("switch.when_full", "explode", "allowed is one of \"drop\", \"pause\""),
        ("switch.queue", "1 B", "allowed is at most switch.queue"),
        ("nothing", "1", "there is no such field; allowed is cpu.post_list"),
    ] {
        let error = t1.with(path, value).expect_err(path).to_string();
        assert!(error.contains(words), "{words:?} is missing in: {error}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        prop_assert!(Testbed::from_toml("my.toml", &text).is_err());
    }

    /// A file with some bytes replaced is either accepted or rejected with a valid line number.
    #[test]
    fn damaged_files_are_refused_with_a_line(at in 0..T1.len(), with in "[ -~]{0,6}") {
        let mut text = T1.clone();
        let end = (at + 3).min(text.len());
        text.replace_range(at..end, &with);
        if let Err(error) = Testbed::from_toml("my.toml", &text) {
            let line: usize = error.place.strip_prefix("my.toml:").and_then(|line| line.parse().ok()).unwrap();
            prop_assert!((1..=text.lines().count() + 1).contains(&line), "{}", error);
        }
    }

    #[test]
    fn no_override_panics(path in "[a-z._]{0,20}", value in "\\PC{0,20}") {
        let _ = t1().with(&path, &value);
        let _ = t1().with("link.rate", &value);
    }
}
