//! Curves of runs as one CSV.

use doorbell_record::{Operation, PointRecord, Quantity, Spread};
use doorbell_study::experiment::{Experiment, View};

use crate::view::{ordered, window_and_batch};
use crate::{Model, Run, experiments};

/// Names of the columns of [`csv()`], in their order. docs/record.md describes them.
pub const COLUMNS: [&str; 21] = [
    "run",
    "testbed",
    "experiment",
    "curve",
    "axis",
    "x",
    "operation",
    "protocol",
    "bytes",
    "reply",
    "window",
    "batch",
    "connections",
    "quantity",
    "unit",
    "least",
    "median",
    "most",
    "repetitions",
    "model",
    "quiet",
];

/// Returns the curves of all experiments of these runs as CSV. The first line has the names of the columns, and each
/// further line is one quantity of one point. Fields are quoted as in RFC 4180, section 2. Lines end with LF.
pub fn csv(runs: &[Run], model: Option<&dyn Model>) -> String {
    let mut text = line(&COLUMNS.map(str::to_owned));
    for experiment in &experiments(runs) {
        for run in runs {
            let is_quiet = View::new(&run.records).restlessness(experiment).is_none();
            for record in ordered(run, experiment) {
                for &quantity in &experiment.quantities {
                    let Some(spread) = record.spread(quantity) else { continue };
                    let predicted = model.and_then(|model| model.predict(run, record, quantity));
                    let predicted = predicted.map(|prediction| prediction.value);
                    text.push_str(&line(&fields(run, experiment, record, quantity, spread, predicted, is_quiet)));
                }
            }
        }
    }
    text
}

/// Returns the fields of one quantity of a point, in the order of [`COLUMNS`].
fn fields(
    run: &Run,
    experiment: &Experiment,
    record: &PointRecord,
    quantity: Quantity,
    spread: Spread,
    predicted: Option<f64>,
    is_quiet: bool,
) -> [String; COLUMNS.len()] {
    let parameters = &record.parameters;
    let is_far = parameters.far.is_some();
    let has_protocol = !is_far && !parameters.operation.is_one_sided();
    let (window, batch) = window_and_batch(record);
    // Points on shared memory have their own parameters.
    let of_messages = |number: usize| if is_far { String::new() } else { number.to_string() };
    [
        run.name.clone(),
        run.testbed().unwrap_or_default().to_owned(),
        experiment.name.clone(),
        record.series.clone(),
        experiment.sweep.to_owned(),
        number(record.x),
        if is_far { String::new() } else { operation(record) },
        if has_protocol { parameters.protocol.name().to_owned() } else { String::new() },
        record.bytes().to_string(),
        reply(record),
        of_messages(window),
        of_messages(batch),
        of_messages(parameters.connections),
        quantity.name().to_owned(),
        quantity.unit().to_owned(),
        number(spread.least),
        number(spread.median),
        number(spread.most),
        record.repetitions.len().to_string(),
        predicted.map(number).unwrap_or_default(),
        is_quiet.to_string(),
    ]
}

/// Returns the name of the operation in records.
fn operation(record: &PointRecord) -> String {
    let name = serde_json::to_value(record.parameters.operation).ok();
    name.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the bytes of a reply, or an empty text unless messages are requests.
fn reply(record: &PointRecord) -> String {
    let parameters = &record.parameters;
    match parameters.operation {
        Operation::RequestResponse => parameters.reply_bytes(record.bytes()).to_string(),
        _ => String::new(),
    }
}

/// Returns a number with a decimal point or an exponent, so that readers that guess the type of a column find a real
/// number in each field.
fn number(value: f64) -> String {
    format!("{value:?}")
}

fn line(fields: &[String]) -> String {
    let quoted: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
    format!("{}\n", quoted.join(","))
}

/// Quotes a field that contains a comma, a quote or the end of a line.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use doorbell_study::experiment::REQUESTS;

    use super::*;
    use crate::view::tests::run;

    /// Returns the fields of each line. The texts of the tests have no ends of lines within a field.
    fn parsed(text: &str) -> Vec<Vec<String>> {
        let fields = |line: &str| {
            let (mut fields, mut is_quoted) = (vec![String::new()], false);
            let mut characters = line.chars().peekable();
            while let Some(character) = characters.next() {
                match character {
                    '"' if is_quoted && characters.peek() == Some(&'"') => {
                        characters.next();
                        fields.last_mut().unwrap().push('"');
                    }
                    '"' => is_quoted = !is_quoted,
                    ',' if !is_quoted => fields.push(String::new()),
                    other => fields.last_mut().unwrap().push(other),
                }
            }
            fields
        };
        text.lines().map(fields).collect()
    }

    #[test]
    fn each_quantity_of_a_point_is_a_line() {
        let mut here = run("a, \"run\"", "send-receive/window", 1e6);
        here.records.truncate(2);
        here.records[1].repetitions[0].messages_per_s = 9e6;
        let lines = parsed(&csv(std::slice::from_ref(&here), None));
        assert_eq!(lines[0], COLUMNS);
        assert!(lines.iter().all(|line| line.len() == COLUMNS.len()), "{lines:?}");
        // Message rate and throughput. The made-up results have no CPU time.
        assert_eq!(lines.len(), 1 + 2 * 2, "{lines:?}");
        let expected = [
            "a, \"run\"",
            "",
            "send-receive/window",
            "one per post",
            "messages unacknowledged at most",
            "1.0",
            "send",
            "send-receive",
            "16",
            "",
            "1",
            "1",
            "1",
            "message rate",
            "M messages/s",
            "1.0",
            "1.25",
            "1.5",
            "2",
            "",
            "false",
        ];
        assert_eq!(lines[1], expected);
        assert_eq!(lines[3][15..18], ["1.5", "5.25", "9.0"]);
        here.records.truncate(1);
        assert_eq!(parsed(&csv(&[here], None))[1][20], "true", "one point differs by 40 %");
        let asked = parsed(&csv(&[run("here", REQUESTS, 1e5)], None));
        let of_rates = asked.iter().filter(|line| line[13] == "message rate");
        let shown: Vec<[&str; 3]> = of_rates.map(|line| [8, 9, 12].map(|column| line[column].as_str())).collect();
        assert_eq!(shown, [["200", "65536", "1"], ["200", "65536", "16"]], "request, reply and connections");
    }

    #[test]
    fn fields_with_separators_are_quoted() {
        for (field, text) in [
            ("plain text", "plain text"),
            ("a,b", "\"a,b\""),
            ("say \"so\"", "\"say \"\"so\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("", ""),
        ] {
            assert_eq!(quoted(field), text);
        }
    }

    #[test]
    fn columns_are_documented() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/record.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.split_once("| column |").expect("a table of columns").1.split("\n\n").next().unwrap();
        let named: Vec<&str> =
            table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect();
        assert_eq!(named, COLUMNS);
        let used: Vec<&str> =
            page.split("pl.col(\"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(name, _)| name).collect();
        assert!(!used.is_empty() && used.iter().all(|name| COLUMNS.contains(name)), "{used:?}");
    }
}
