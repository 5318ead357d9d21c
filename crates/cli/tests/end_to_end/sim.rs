//! `doorbell sim`.

use serde_json::Value;

use crate::command::run;

#[test]
fn testbeds_are_listed_and_printed_with_the_source_of_each_value() {
    let list = run("sim testbeds").expect_status(0).stdout;
    let json = run("sim testbeds --json").expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-sim-testbeds/1");
    for testbed in json["testbeds"].as_array().expect("testbeds") {
        let name = testbed["name"].as_str().expect("a name");
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} is missing in: {list}");
        let text = run(&format!("sim testbeds {name}")).expect_status(0).stdout;
        let json = run(&format!("sim testbeds {name} --json")).expect_status(0).json();
        let parameters = json.pointer("/testbed/parameters").and_then(Value::as_array).expect("parameters");
        assert_eq!(Some(parameters.len() as u64), testbed["values"].as_u64());
        let fitted = parameters.iter().filter(|parameter| parameter["fitted"] == true).count();
        assert_eq!(Some(fitted as u64), testbed["fitted"].as_u64());
        for parameter in parameters {
            let source = parameter["source"].as_str().expect("a source");
            assert!(text.contains(source), "{source:?} is missing in: {text}");
        }
    }
}

#[test]
fn values_are_replaced_and_what_is_not_allowed_is_refused() {
    let json = run("sim testbeds connectx5-100g --set link.rate_gbps=25 --json").expect_status(0).json();
    let parameters = json.pointer("/testbed/parameters").and_then(Value::as_array).expect("parameters");
    let rate = parameters.iter().find(|parameter| parameter["path"] == "link.rate").expect("a rate");
    assert_eq!((&rate["value"], &rate["unit"]), (&Value::from("25"), &Value::from("Gb/s")));
    for (arguments, words) in [
        ("connectx5-100g --set link.rate=-1", "link.rate: it is -1 Gb/s, which is negative; allowed is"),
        ("connectx5-100g --set link.rat=1", "the nearest is link.rate"),
        ("connectx5-100g --set link.rate", "as in link.rate=25Gb/s"),
        ("connectx9", "there is no testbed connectx9; allowed is connectx5-100g"),
        ("--set link.rate=1", "--set needs the name of a testbed"),
    ] {
        let finished = run(&format!("sim testbeds {arguments}")).expect_status(2);
        assert!(finished.stderr.contains(words), "{words:?} is missing in: {}", finished.stderr);
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn a_file_that_is_wrong_is_named_with_the_line() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "schema = \"doorbell-testbed/1\"\nname = \"mine\"\n[cqu]\n";
    std::fs::write(file.path(), text).expect("the file can be written");
    let path = file.path().display();
    let finished = run(&format!("sim testbeds {path}")).expect_status(1);
    let words = format!("{path}:3: cqu: there is no such field; the nearest is cpu");
    assert!(finished.stderr.contains(&words), "{words:?} is missing in: {}", finished.stderr);
    let finished = run("sim testbeds /nothing/here.toml").expect_status(1);
    assert!(finished.stderr.contains("/nothing/here.toml cannot be read"), "{}", finished.stderr);
}

#[test]
fn published_rows_are_simulated_and_compared() {
    let arguments = "sim reproduce --testbed connectx5-memory --quick";
    let text = run(arguments).expect_status(0).stdout;
    let json = run(&format!("{arguments} --json")).expect_status(0).json();
    assert_eq!(json["schema"], "doorbell-sim-reproduce/1");
    let report = &json["testbeds"][0];
    assert_eq!((&report["testbed"], &report["published"]), (&Value::from("connectx5-memory"), &Value::from("T3")));
    for row in report["rows"].as_array().expect("rows") {
        let id = row["id"].as_str().expect("an id");
        assert!(text.contains(id), "{id} is missing in: {text}");
        assert_eq!(row["simulated"].is_null(), row["reason"].is_string(), "{row}");
        assert_eq!(row["status"] == "not simulated", row["simulated"].is_null(), "{row}");
    }
    let wrong = run("sim reproduce --testbed connectx5-memory --set nic.atomic=fast").expect_status(2);
    assert!(wrong.stderr.contains("nic.atomic: fast is no decimal number"), "{}", wrong.stderr);
}
