use serde_json::{Value as Json, json};

use super::*;
use crate::words::{Extent, Kind, Operation};

fn plain() -> Parameters {
    Parameters::plain(Kind::Bandwidth, Operation::Send, 16)
}

/// Returns all fields of a JSON object with their values. A dot separates the names of nested objects.
fn fields(of: &Json, path: &str, found: &mut Vec<(String, Json)>) {
    match of {
        Json::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(value, &path, found);
            }
        }
        value => found.push((path.to_owned(), value.clone())),
    }
}

fn json(parameters: &Parameters) -> Vec<(String, Json)> {
    let mut found = Vec::new();
    fields(&serde_json::to_value(parameters).unwrap(), "", &mut found);
    found
}

/// Returns two values in the range of a setting.
fn two_of(range: Range) -> [Value; 2] {
    match range {
        Range::Whole(least, most) => [Value::Whole(least), Value::Whole(most)],
        Range::Real(least, most) => [Value::Real(least), Value::Real(most)],
        Range::OneOf(numbers) => [Value::Whole(numbers[0]), Value::Whole(numbers[1])],
        Range::Words(_) => [Value::Word(0), Value::Word(1)],
        Range::OnOff => [Value::On(false), Value::On(true)],
    }
}

#[test]
fn each_setting_changes_its_field_alone() {
    for setting in SETTINGS {
        let [one, other] = two_of(setting.range).map(|value| {
            let mut parameters = plain();
            assert!(setting.set(&mut parameters, value), "{setting}");
            assert_eq!((setting.get)(&parameters), [value], "{setting}");
            json(&parameters)
        });
        let changed: Vec<_> = other.iter().filter(|field| !one.contains(field)).map(|(name, _)| name).collect();
        assert_eq!(changed, [setting.field], "{setting}");
    }
}

#[test]
fn each_field_has_a_setting() {
    let mut given = plain();
    given.signal_each = true;
    for (field, _) in json(&given) {
        let is_known = SETTINGS.iter().any(|setting| setting.field == field);
        assert!(is_known || field == "depths_are_defaults", "no setting describes {field}");
    }
}

#[test]
fn options_have_the_defaults_of_plain_parameters() {
    for setting in SETTINGS {
        let Some(CommandOption { default: Some(default), .. }) = setting.option else { continue };
        let default = if *setting == &MEMORY { (256 << 20).to_string() } else { default.to_owned() };
        assert_eq!(setting.parse(&default).into_iter().collect::<Vec<_>>(), (setting.get)(&plain()), "{setting}");
    }
}

#[test]
fn a_value_of_its_own_is_checked_against_the_range() {
    assert_eq!(RATE.check_value(Value::Real(MAX_MESSAGES_PER_S)), Ok(()));
    for (rate, shown) in [(1e13, "10000000000000"), (0.0, "0"), (f64::NAN, "NaN")] {
        let error = RATE.check_value(Value::Real(rate)).unwrap_err().in_options();
        let allowed = "allowed is 0.001 to 1000000000000 messages/s";
        assert_eq!(error, format!("the rate (--rate) is {shown} messages/s, {allowed}"));
    }
}

/// A new setting is a field of [`Parameters`] and one entry of the table. The toy has the field of another setting.
#[test]
fn a_toy_setting_needs_one_entry() {
    static TOY: Setting = Setting {
        field: "slow_receiver_us",
        about: "Naps of the receiver",
        range: Range::Whole(1, 9),
        bound: Some(|all| all.window as u64),
        option: Some(CommandOption {
            short: None,
            long: "naps",
            value: Some("N"),
            default: Some("1"),
            note: "",
            heading: "Toys",
        }),
        sweep: Some("naps"),
        unmodelled: Some("it napped"),
        get: |all| vec![Value::Whole(all.slow_receiver_us)],
        put: |all, value| all.slow_receiver_us = value.whole(),
        ..Setting::named("the number of naps", " naps")
    };
    let mut parameters = Parameters { window: 4, extent: Extent::Messages(1), ..plain() };
    // A sweep parses and shows values.
    assert_eq!((TOY.parse("0"), TOY.parse("9"), TOY.parse("x")), (None, Some(Value::Whole(9)), None));
    assert_eq!(TOY.allowed(None), "1 to 9 naps");
    assert!(!TOY.set(&mut parameters, Value::Whole(10)) && TOY.set(&mut parameters, Value::Whole(7)));
    assert_eq!(serde_json::to_value(&parameters).unwrap()[TOY.field], json!(7));
    // The bound depends on another setting, and the error names the option.
    let error = TOY.check(&parameters).unwrap_err();
    assert_eq!(error.to_string(), "the number of naps is 7 naps, allowed is 1 to 4 naps");
    assert_eq!(error.in_options(), "the number of naps (--naps) is 7 naps, allowed is 1 to 4 naps");
    parameters.window = 7;
    assert_eq!(TOY.check(&parameters), Ok(()));
    assert!(TOY.differs(&parameters) && !TOY.differs(&plain()), "the model leaves out a result with naps");
}
