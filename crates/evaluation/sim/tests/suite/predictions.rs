//! The page of blind predictions has each row, with the numbers of the simulator.

use std::path::Path;

use doorbell_sim::predict::{BlindRow, PATH, Unit, cells, digits, heading, predict, revision, rows, testbeds};
use doorbell_sim::reproduce::{Effort, Runs};

/// The page, and its rows.
struct Page {
    text: String,
    rows: Vec<BlindRow>,
}

impl Page {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(PATH);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; `doorbell sim predict --out {PATH}` makes it", path.display())
        });
        Self { text, rows: rows() }
    }

    /// Returns the rest of a row's line on the page, after the cells that identify the row.
    fn line(&self, row: &BlindRow) -> &str {
        let (heading, cells) = (heading(row), cells(row));
        let section = self.text.split(&format!("\n{heading}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("no section {heading}"));
        let section = section.split("\n#").next().unwrap_or_default();
        let mut lines = section.lines().filter_map(|line| line.strip_prefix(&cells));
        let line = lines.next().unwrap_or_else(|| panic!("{heading} has no line {cells}"));
        assert_eq!(lines.next(), None, "{heading} has two lines {cells}");
        line
    }

    /// Returns the predicted value and interval; `None` for a row without a prediction.
    fn numbers(&self, row: &BlindRow) -> Option<[f64; 3]> {
        let line = self.line(row);
        let mut numbers = line.split(['|', ' ']).filter_map(|word| word.parse().ok());
        let numbers = [(); 3].map(|()| numbers.next());
        match numbers {
            [Some(value), Some(least), Some(greatest)] => Some([value, least, greatest]),
            _ => {
                assert_eq!(line, " none | | |");
                None
            }
        }
    }
}

#[test]
fn each_row_is_on_the_page_with_an_empty_cell() {
    let page = Page::read();
    let mut count = 0;
    for row in &page.rows {
        match page.numbers(row) {
            Some([value, least, greatest]) => {
                assert!(least <= value && value <= greatest && value > 0.0, "{row:?}");
                assert!(page.line(row).ends_with("| |"), "{row:?}");
                count += 1;
            }
            // No message of the sizes may fill the line.
            None => assert_eq!(row.unit, Unit::Bytes, "no prediction: {row:?}"),
        }
    }
    assert!(count > 100);
    // The page has no rows of an earlier list of rows.
    let lines = page.text.lines().filter(|line| line.contains(" to ") && line.ends_with("| |"));
    assert_eq!(lines.count(), count);
}

#[test]
fn the_page_names_the_current_testbeds() {
    let page = Page::read();
    for testbed in testbeds() {
        assert!(page.text.contains(&revision(testbed)), "{} has changed since {PATH} was made", testbed.name);
    }
}

/// Detects a page that is older than the simulator. Simulations give the same numbers on each machine, so a deviation
/// of more than 1 % means that the simulator has changed.
#[test]
fn quick_rows_equal_the_numbers_on_the_page() {
    let page = Page::read();
    for testbed in testbeds() {
        let mut runs = Runs::new(testbed, Effort::QUICK);
        for row in page.rows.iter().filter(|row| row.testbed == testbed.name && row.is_quick()) {
            let changed = row.on(testbed).unwrap_or_else(|error| panic!("{row:?}: {error}"));
            let found = if changed.digest() == testbed.digest() {
                row.simulate(&mut runs)
            } else {
                row.simulate(&mut Runs::new(&changed, Effort::QUICK))
            };
            let found = found.unwrap_or_else(|lack| panic!("{row:?}: {lack}"));
            let [value, ..] = page.numbers(row).expect("a prediction");
            assert!((found / value - 1.0).abs() <= 0.01, "{PATH} has {value}, the simulator finds {found}: {row:?}");
        }
    }
}

/// CASes on memory in the NIC wait for no bus, so they are faster than CASes on the memory of the host.
#[test]
fn a_row_may_differ_from_its_testbed() {
    let testbed = testbeds().find(|testbed| testbed.name == "connectx5-100g-far").expect("a testbed");
    let of = |row: &BlindRow| row.experiment == "CAS on one address in the NIC's memory" && row.at.1 == 20.0;
    let row = rows().into_iter().find(of).expect("a row");
    let changed = row.on(testbed).unwrap_or_else(|error| panic!("{error}"));
    let [host, nic] = [testbed, &changed]
        .map(|testbed| row.simulate(&mut Runs::new(testbed, Effort::QUICK)).unwrap_or_else(|lack| panic!("{lack}")));
    assert!(nic > 3.0 * host, "{nic} and {host} M/s");
}

/// The error on similar published rows widens an interval, and does not move the prediction.
#[test]
fn the_error_on_similar_rows_widens_intervals() {
    let testbed = testbeds().find(|testbed| testbed.name == "connectx5-100g-far").expect("a testbed");
    let effort = Effort { messages: 400, least_each: 100, rounds: 20, ..Effort::QUICK };
    let of = |row: &BlindRow| row.experiment == "8 B over 20 queue pairs" && row.at.1 == 48.0;
    let asked: Vec<BlindRow> = rows().into_iter().filter(of).collect();
    assert_eq!(asked.len(), 3);
    for one in predict(asked, testbed, effort, 1, || ()).unwrap_or_else(|error| panic!("{error}")) {
        let estimate = one.outcome.as_ref().unwrap_or_else(|lack| panic!("{lack}"));
        let error = one.error.expect("published rates of T3");
        assert!(error > 0.0, "{one:?}");
        let (least, greatest) = estimate.interval;
        let moved = error * estimate.value * (1.0 - 1e-9);
        assert!(least <= (estimate.value - moved).max(0.0) && estimate.value + moved <= greatest, "{one:?}");
        let alone = one.row.simulate(&mut Runs::new(testbed, effort)).unwrap_or_else(|lack| panic!("{lack}"));
        assert_eq!(alone, estimate.value);
    }
}

/// The results depend neither on the number of threads nor on the order of rows, and each value lies in its interval.
#[test]
fn intervals_do_not_depend_on_the_number_of_threads() {
    let latencies = || -> Vec<BlindRow> { rows().into_iter().filter(|row| row.experiment == "base latency").collect() };
    let testbed = testbeds().find(|testbed| testbed.name == latencies()[0].testbed).expect("a testbed");
    let effort = Effort { messages: 400, least_each: 100, rounds: 20, ..Effort::QUICK };
    let found = |rows, threads| {
        let predicted = predict(rows, testbed, effort, threads, || ()).unwrap_or_else(|error| panic!("{error}"));
        let text = |one: &doorbell_sim::predict::Predicted| {
            let estimate = one.outcome.as_ref().unwrap_or_else(|lack| panic!("{lack}"));
            let (least, greatest) = estimate.interval;
            assert!(least <= estimate.value && estimate.value <= greatest, "{one:?}");
            assert!(one.lacks.is_empty(), "{one:?}");
            format!("{} {} {least} {greatest}", cells(&one.row), estimate.value)
        };
        let mut lines: Vec<String> = predicted.iter().map(text).collect();
        lines.sort();
        lines
    };
    let one = found(latencies(), 1);
    assert_eq!(one, found(latencies().into_iter().rev().collect(), 3));
    // Some values of the testbed move some results.
    assert!(one.iter().any(|line| {
        let words: Vec<&str> = line.rsplit(' ').take(3).collect();
        words[0] != words[2]
    }));
}

#[test]
fn numbers_have_three_digits() {
    assert_eq!(
        [0.0, 0.12345, 0.9996, 1.2345, 9.996, 12.345, 123.45].map(digits),
        ["0.000", "0.123", "1.00", "1.23", "10.0", "12.3", "123"]
    );
}
