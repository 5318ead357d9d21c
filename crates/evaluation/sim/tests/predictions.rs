//! The page of blind predictions has each row, with the numbers of the simulator.

use doorbell_sim::predict::{BlindRow, cells, digits, heading, predict, revision, rows, testbeds};
use doorbell_sim::reproduce::{Effort, Runs};

const PAGE: &str = include_str!("../../../../docs/blind-predictions.md");

/// Returns the rest of a row's line on the page, after the cells that identify the row.
fn on_page(row: &BlindRow) -> &'static str {
    let (heading, cells) = (heading(row), cells(row));
    let section = PAGE.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n#").next().unwrap_or_default();
    let mut lines = section.lines().filter_map(|line| line.strip_prefix(&cells));
    let line = lines.next().unwrap_or_else(|| panic!("{heading} has no line {cells}"));
    assert_eq!(lines.next(), None, "{heading} has two lines {cells}");
    line
}

/// Returns the predicted value and interval; `None` for a row without a prediction.
fn numbers(row: &BlindRow) -> Option<[f64; 3]> {
    let line = on_page(row);
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

#[test]
fn each_row_is_on_the_page_with_an_empty_cell() {
    let rows = rows();
    let (mut count, mut without) = (0, 0);
    for row in &rows {
        match numbers(row) {
            Some([value, least, greatest]) => {
                assert!(least <= value && value <= greatest && value > 0.0, "{row:?}");
                assert!(on_page(row).ends_with("| |"), "{row:?}");
            }
            None => without += 1,
        }
        count += 1;
    }
    assert!(count > 300);
    assert_eq!(without, 0, "{without} rows have no prediction; explain them in this test");
    // The page has no rows of an earlier list of rows.
    let lines = PAGE.lines().filter(|line| line.contains(" to ") && line.ends_with("| |"));
    assert_eq!(lines.count(), count);
}

#[test]
fn the_page_names_the_current_testbeds() {
    for testbed in testbeds() {
        assert!(
            PAGE.contains(&revision(testbed)),
            "{} has changed since docs/blind-predictions.md was made",
            testbed.name
        );
    }
}

/// Detects a page that is older than the simulator. Simulations give the same numbers on each machine, so a deviation
/// of more than 1 % means that the simulator has changed.
#[test]
fn quick_rows_equal_the_numbers_on_the_page() {
    for testbed in testbeds() {
        let mut runs = Runs::new(testbed, Effort::QUICK);
        for row in rows().into_iter().filter(|row| row.testbed == testbed.name && row.is_quick()) {
            let found = row.simulate(&mut runs, None).unwrap_or_else(|lack| panic!("{row:?}: {lack}"));
            let [value, ..] = numbers(&row).expect("a prediction");
            assert!((found / value - 1.0).abs() <= 0.01, "the page has {value}, the simulator finds {found}: {row:?}");
        }
    }
}

/// The results depend neither on the number of threads nor on the order of rows, and each value lies in its interval.
#[test]
fn intervals_do_not_depend_on_the_number_of_threads() {
    let of_t2 = || -> Vec<BlindRow> { rows().into_iter().filter(|row| row.experiment == "request-response").collect() };
    let testbed = testbeds().find(|testbed| testbed.name == of_t2()[0].testbed).expect("a testbed");
    let effort = Effort { messages: 400, least_each: 100, rounds: 20 };
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
    let one = found(of_t2(), 1);
    assert_eq!(one, found(of_t2().into_iter().rev().collect(), 3));
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
