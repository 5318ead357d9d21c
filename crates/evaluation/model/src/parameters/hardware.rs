//! Values that a parameter file takes from the hardware of the simulator's testbed, so that each value is defined once.

use toml::{Table, Value};

/// Returns the table of a parameter file in which the entries of its table `hardware` are values. An entry has the name
/// of a parameter and, as text, section and name of a value in the files of the testbed.
///
/// # Errors
///
/// Returns a sentence if the set has another name than a testbed, if the testbed lacks a value, or if the file states a
/// parameter itself.
pub(super) fn resolved(mut table: Table) -> Result<Table, String> {
    let Some(entries) = table.remove("hardware") else { return Ok(table) };
    let Value::Table(entries) = entries else { return Err("it is no table".to_owned()) };
    let name = table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let files = files_of(&name).ok_or_else(|| format!("name is \"{name}\", allowed is a testbed with hardware"))?;
    for (parameter, place) in entries {
        let place = place.as_str().ok_or_else(|| format!("{parameter} is {place}, allowed is \"section.name\""))?;
        let value = files.iter().find_map(|file| found(file, place));
        let value = value.ok_or_else(|| format!("{parameter}: the testbed {name} has no time or count {place}"))?;
        let (into, own) = match parameter.strip_prefix("limits.") {
            Some(limit) => {
                let limits = table.entry("limits").or_insert_with(|| Value::Table(Table::new()));
                (limits.as_table_mut().ok_or("limits is no table")?, limit)
            }
            None => (&mut table, parameter.as_str()),
        };
        if into.insert(own.to_owned(), value).is_some() {
            return Err(format!("{parameter} is stated twice, allowed is once"));
        }
    }
    Ok(table)
}

/// Returns the files of a testbed and of its parts. A value of an earlier file replaces that of a later one.
fn files_of(name: &str) -> Option<Vec<Table>> {
    let long = doorbell_data::names(name)?.long;
    let read = |files: &[doorbell_data::File], name: &str| -> Option<Table> {
        files.iter().find(|file| file.name == name)?.text.parse().ok()
    };
    let testbed = read(doorbell_data::TESTBEDS, long)?;
    let parts: Vec<Table> = {
        let names = testbed.get("parts")?.as_array()?.iter().filter_map(Value::as_str);
        names.filter_map(|part| read(doorbell_data::HARDWARE, part)).collect()
    };
    Some(std::iter::once(testbed).chain(parts).collect())
}

/// Returns a value of a file: a time in nanoseconds, or a count.
fn found(file: &Table, place: &str) -> Option<Value> {
    let (section, name) = place.split_once('.')?;
    let entry = file.get(section)?.get(name)?;
    let number = entry.get("value")?;
    let ns_per_unit = match entry.get("unit")?.as_str()? {
        "ns" => 1.0,
        "us" => 1e3,
        "count" => return Some(number.clone()),
        _ => return None,
    };
    let number = number.as_float().or_else(|| number.as_integer().map(|whole| whole as f64))?;
    Some(Value::Float(number * ns_per_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Table, String> {
        resolved(text.parse().unwrap())
    }

    #[test]
    fn values_come_from_the_testbed_before_its_parts() {
        let table = read(
            "name = \"T3\"\n[hardware]\no_slow_ns = \"pcie.slow_access\"\no_unit_ns = \"nic.unit_inline\"\n\
             \"limits.slow_every\" = \"pcie.slow_every\"",
        )
        .unwrap();
        assert_eq!(table["o_slow_ns"].as_float(), Some(13_000.0));
        assert_eq!(table["o_unit_ns"].as_float(), Some(54.8));
        assert_eq!(table["limits"]["slow_every"].as_integer(), Some(100));
        assert!(!table.contains_key("hardware"));
    }

    #[test]
    fn missing_values_are_named() {
        for (text, words) in [
            ("name = \"T9\"\n[hardware]", "name is \"T9\", allowed is a testbed with hardware"),
            ("name = \"T2\"\n[hardware]\nx = 5", "x is 5, allowed is \"section.name\""),
            ("name = \"T2\"\n[hardware]\nx = \"nic.none\"", "x: the testbed T2 has no time or count nic.none"),
            ("name = \"T2\"\nx = 1\n[hardware]\nx = \"nic.read\"", "x is stated twice, allowed is once"),
            ("hardware = 1", "it is no table"),
        ] {
            assert_eq!(read(text), Err(words.to_owned()));
        }
    }
}
