use proptest::prelude::*;

use super::*;

const SMALL: &str = r#"
schema = "doorbell-published/1"
testbed = "T9"
about = "a test"
hardware = "none"
link_gbps = 100.0
unknown = []

[sources]
paper = "a paper"

[configurations.one]
bytes = 16
window = 1
batch = 1
poll_list = 1
repost_list = 1
credits = false
threads = 1
connections = 1
receivers = "own"
shared_receives = false
path_mtu = "unknown"
pace = "unlimited"

[configurations.many]
like = "one"
window = [1, 64]

[[row]]
id = "a/row"
says = "a sentence"
experiment = "send-receive/window"
protocol = "send-receive"
quantity = "message-rate"
relation = "about"
value = 14.0
unit = "M/s"
configuration = { like = "many", batch = 8 }
source = "paper"
uncertain = []

[[shape]]
id = "a/shape"
says = "another"
experiment = "send-receive/window"
operation = "write"
numbers = { knee = 32 }
configuration = { bytes = 1, window = 8, connections = 1, path_mtu = 1024 }
source = "paper"
uncertain = ["everything"]
"#;

#[test]
fn every_file_loads_and_every_row_is_complete() {
    let mut ids = std::collections::BTreeSet::new();
    for &doorbell_data::File { path: file, text, .. } in doorbell_data::PUBLISHED {
        let testbed = Testbed::from_toml(file, text).unwrap_or_else(|error| panic!("{error}"));
        assert!(!testbed.rows.is_empty() && !testbed.shapes.is_empty(), "{file}");
        for id in testbed.rows.iter().map(|row| &row.id).chain(testbed.shapes.iter().map(|shape| &shape.id)) {
            assert!(ids.insert(id.clone()), "{id}");
        }
        for source in testbed.sources.keys() {
            let is_named = testbed.rows.iter().any(|row| row.source == *source)
                || testbed.shapes.iter().any(|shape| shape.source == *source);
            assert!(is_named, "{file}: nothing is of source {source}");
        }
        // If the source states no batch, lists have one entry. On T1, only the rows that mention credits used credits.
        for row in testbed.rows.iter().filter(|row| matches!(row.subject, Subject::Protocol(_))) {
            let it = &row.configuration;
            assert_eq!(it.credits, Some(false), "{}", row.id);
            assert_eq!(it.repost_list, Some(Amount::Is(1.0)), "{}", row.id);
            let lists = it.batch.and_then(Amount::most) > Some(1.0);
            assert!(!lists || row.experiment.contains("batch"), "{}", row.id);
            let many = it.receivers == Some(Receivers::Single);
            assert_eq!(many, row.experiment.contains("n-to-1"), "{}", row.id);
            assert!(!many || it.pace == Some(Pace::HighestWithoutRnr), "{}", row.id);
        }
        // The field `fence_waits_for` of a configuration matches the protocol.
        let rows = testbed.rows.iter().map(|row| (&row.id, &row.subject, &row.configuration));
        let shapes = testbed.shapes.iter().map(|shape| (&shape.id, &shape.subject, &shape.configuration));
        for (id, subject, configuration) in rows.chain(shapes) {
            let Subject::Protocol(protocol) = subject else { continue };
            let fence = match protocol.as_str() {
                "direct-read" | "direct-read-send" => Some(Fence::Nothing),
                "direct-read-fenced" | "direct-read-fenced-send" => Some(Fence::ReadCompletion),
                "direct-read-fenced-awaited" => Some(Fence::WriteCompletion),
                _ => None,
            };
            assert_eq!(configuration.fence_waits_for, fence, "{id}");
        }
    }
    assert_eq!(all().iter().map(|testbed| testbed.name.as_str()).collect::<Vec<_>>(), ["T1", "T2", "T3"]);
    assert_eq!(testbed("t1").map(|it| it.name.as_str()), Some("T1"));
    assert_eq!(testbed("t4"), None);
    let fenced = &shape("direct-read/fence-is-slower").unwrap().configuration;
    assert_eq!(fenced.fence_waits_for, Some(Fence::WriteCompletion));
}

#[test]
fn units_convert() {
    let is = |number, unit, to, expected: f64| {
        let found = Value { number, unit }.in_unit(to).unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{number} {unit} are {found} {to}");
    };
    is(70.0, Unit::Gibit, Unit::Gb, 75.161_927_68);
    is(1.7, Unit::Gibit, Unit::BytesPerSecond, 228_170_137.6);
    is(12.3, Unit::GigaBytes, Unit::Gb, 98.4);
    is(481.0, Unit::Thousands, Unit::Millions, 0.481);
    is(98.04, Unit::Percent, Unit::Times, 0.9804);
    assert_eq!(Value { number: 0.2, unit: Unit::UsPerKib }.in_base(), 200.0 / 1024.0);
    assert_eq!(Value { number: 2.0, unit: Unit::Us }.in_base(), 2000.0);
    assert_eq!(Value { number: 1.0, unit: Unit::Us }.in_unit(Unit::Gb), None);
    let of_16 = row("send-receive/batch-ceiling").unwrap().value.in_base() / 16.0;
    assert!((of_16 / 14.26e6 - 1.0).abs() < 1e-3, "{of_16}");
}

#[test]
fn bounds_are_missed_on_one_side_only() {
    assert_eq!(Relation::AtLeast.deviation(10.0, 20.0), 0.0);
    assert_eq!(Relation::AtLeast.deviation(10.0, 5.0), -0.5);
    assert_eq!(Relation::AtMost.deviation(10.0, 5.0), 0.0);
    assert_eq!(Relation::AtMost.deviation(10.0, 20.0), 1.0);
    assert_eq!(Relation::About.deviation(10.0, 5.0), -0.5);
}

#[test]
fn configurations_build_on_each_other() {
    let testbed = Testbed::from_toml("x.toml", SMALL).unwrap();
    let row = testbed.row("a/row").unwrap();
    assert_eq!(row.configuration.window, Some(Amount::Span(1.0, 64.0)));
    assert_eq!((row.configuration.batch, row.configuration.bytes), (Some(Amount::Is(8.0)), Some(Amount::Is(16.0))));
    assert_eq!(testbed.shape("a/shape").unwrap().number("knee"), Some(32.0));
    assert!(row.fitted.is_empty());
    let chosen = SMALL.replacen("uncertain = []", "uncertain = []\nfitted = [\"window\"]", 1);
    assert_eq!(Testbed::from_toml("x.toml", &chosen).unwrap().row("a/row").unwrap().fitted, ["window"]);
}

#[test]
fn what_is_wrong_names_file_row_field_and_what_is_allowed() {
    for (line, wrong, words) in [
        ("testbed = \"T9\"", "testbed = \"\"", &["x.toml: testbed: it is empty"][..]),
        ("published/1", "published/2", &["x.toml: schema: it is \"doorbell-published/2\", allowed is"]),
        ("schema = ", "scheme = ", &["x.toml: schema: it is missing"]),
        ("link_gbps = 100.0", "link_gbps = -1.0", &["x.toml: link_gbps: it is -1, allowed is 0.001 to"]),
        ("link_gbps = 100.0", "link_gbps = nan", &["link_gbps: it is NaN"]),
        ("unknown = []", "", &["x.toml: the file: missing field `unknown`"]),
        ("unknown = []", "unknown = []\ncolour = 1", &["colour", "unknown field"]),
        ("unknown = []", "unknown = [", &["x.toml: line "]),
        ("id = \"a/row\"", "id = \"row\"", &["x.toml: row row: id: it is \"row\", allowed is FAMILY/WHAT"]),
        ("id = \"a/row\"", "", &["x.toml: row 1 of the file: missing field `id`"]),
        ("id = \"a/shape\"", "id = \"a/row\"", &["shape a/row: id: another row or shape has it too"]),
        ("quantity = \"message-rate\"", "quantity = \"speed\"", &["x.toml: row a/row: quantity: ", "`message-rate`"]),
        ("unit = \"M/s\"", "unit = \"us\"", &["x.toml: row a/row: unit: it is \"us\", which does not measure Rate"]),
        ("unit = \"M/s\"", "unit = \"mph\"", &["row a/row: unit: unknown variant `mph`", "`M/s`"]),
        ("unit = \"M/s\"", "", &["row a/row: missing field `unit`"]),
        ("unit = \"M/s\"", "unit = \"M/s\"\nsize = 1", &["row a/row", "unknown field `size`"]),
        ("value = 14.0", "value = -14.0", &["row a/row: value: it is -14, allowed is above 0"]),
        ("value = 14.0", "value = inf", &["row a/row: value: it is inf"]),
        ("relation = \"about\"", "relation = \"like\"", &["row a/row: relation: unknown variant `like`", "`at-least`"]),
        ("source = \"paper\"", "source = \"hearsay\"", &["row a/row: source: it is \"hearsay\", allowed is paper"]),
        (
            "uncertain = []",
            "uncertain = []\nfitted = [\"rate_per_s\"]",
            &["row a/row: fitted: it has \"rate_per_s\", allowed are fields of the row's configuration"],
        ),
        ("protocol = \"send-receive\"", "", &["row a/row: protocol: exactly one of protocol, operation and store"]),
        (
            "operation = \"write\"",
            "operation = \"wipe\"",
            &["shape a/shape: operation: unknown variant `wipe`", "`write`"],
        ),
        ("like = \"many\"", "like = \"few\"", &["row a/row: configuration.like: it is \"few\", allowed is many, one"]),
        ("like = \"one\"", "like = \"many\"", &["row a/row: configuration.like: ", "8 deep at most"]),
        ("credits = false\n", "", &["row a/row: configuration.credits: it is missing: send-receive has one"]),
        (
            "bytes = 1, ",
            "bytes = 1, credits = true, ",
            &["shape a/shape: configuration.credits: write has none, allowed is bytes"],
        ),
        ("bytes = 16", "bytes = 1.5", &["row a/row: configuration.bytes: it is 1.5 to 1.5, allowed is whole numbers"]),
        (
            "window = [1, 64]",
            "window = [64, 1]",
            &["configuration.window: it is 64 to 1, allowed is", "the least first"],
        ),
        (
            "window = [1, 64]",
            "window = \"wide\"",
            &["row a/row: configuration: window: ", "[least, most] or \"unknown\""],
        ),
        ("window = [1, 64]", "windows = 1", &["row a/row: configuration: windows: unknown field `windows`"]),
        ("path_mtu = 1024", "path_mtu = 1500", &["shape a/shape: configuration: path_mtu: it is 1500, allowed is 256"]),
        (
            "receivers = \"own\"",
            "receivers = \"two\"",
            &["configuration: receivers: unknown variant `two`", "`single`"],
        ),
        ("knee = 32", "knee = -1", &["shape a/shape: numbers.knee: it is -1, allowed is above 0"]),
        ("knee = 32", "knee = \"x\"", &["shape a/shape: numbers.knee: "]),
    ] {
        assert!(SMALL.contains(line), "{line}");
        let error = Testbed::from_toml("x.toml", &SMALL.replacen(line, wrong, 1)).expect_err(wrong).to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
    }
}

proptest! {
    /// The parser returns a testbed or an error that names the file for a damaged file, and never panics.
    #[test]
    fn damage_is_survived(at in 0..SMALL.len(), lost in 0..60_usize, instead in "[-0-9a-z\"{}\\[\\],=. \n]{0,12}") {
        let end = (at + lost).min(SMALL.len());
        let damaged = format!("{}{instead}{}", &SMALL[..at], &SMALL[end..]);
        if let Err(error) = Testbed::from_toml("x.toml", &damaged) {
            prop_assert!(error.to_string().starts_with("x.toml: "));
        }
    }
}
