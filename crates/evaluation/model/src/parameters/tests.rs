//! Tests of parameter sets and their files.

use super::*;

#[test]
fn t1_is_read_and_written_without_loss() {
    let t1 = Parameters::t1();
    assert_eq!((t1.o_snd_ns.single, t1.o_snd_ns.batched), (120.0, Some(16.0)));
    assert_eq!((t1.l_ns, t1.g_fix_ns, t1.o_nsnd_ns), (1900.0, 3400.0, 20.0));
    assert_eq!(Parameters::from_toml("written", &t1.to_toml()), Ok(t1.clone()));
    assert!(t1.open_points.iter().any(|point| point.contains("MTU is not stated")));
}

/// Every number in a testbed's file has an origin, and fitted numbers name published rows and shapes.
#[test]
fn every_parameter_of_a_testbed_has_one_origin() {
    for set in doorbell_data::PARAMETERS.iter().map(|file| Parameters::of_testbed(file.name).unwrap()) {
        let table: toml::Table = set.to_toml().parse().unwrap();
        let limits = table["limits"].as_table().unwrap().keys().map(|name| format!("limits.{name}"));
        let is_used = |name: &str| name.contains("_ns") && table[name].as_float() != Some(0.0);
        let times = table.keys().filter(|name| is_used(name)).cloned();
        for name in ["mtu_bytes", "batch"].into_iter().map(str::to_owned).chain(times).chain(limits) {
            let count = set.origins.iter().filter(|origin| origin.parameters.contains(&name)).count();
            assert_eq!(count, 1, "{}: {name}", set.name);
        }
        for id in set.origins.iter().flat_map(|origin| &origin.fitted_to) {
            let is_there = doorbell_claims::row(id).is_some() || doorbell_claims::shape(id).is_some();
            assert!(is_there, "{}: {id} is neither a row nor a shape", set.name);
        }
    }
}

#[test]
fn t1_assumes_the_mtu_that_its_gap_was_measured_with() {
    let per_kib_us = |mtu: f64| 1024.0 * (mtu + 58.0 + 24.0) / mtu * Parameters::t1().gap_bandwidth_ns_per_byte / 1e3;
    assert_eq!(format!("{:.3}", per_kib_us(4096.0)), "0.084");
    assert_eq!(format!("{:.3}", per_kib_us(1024.0)), "0.088");
}

#[test]
fn values_come_back_as_parameters() {
    let t1 = Parameters::t1();
    let back = t1.with_values(&t1.values());
    for (one, other) in [(t1.o_snd_ns, back.o_snd_ns), (t1.o_rcv_ns, back.o_rcv_ns), (t1.o_post_ns, back.o_post_ns)] {
        assert!((one.single - other.single).abs() < 1e-9, "{one:?} {other:?}");
        assert!((one.batched.unwrap() - other.batched.unwrap()).abs() < 1e-9, "{one:?} {other:?}");
    }
    assert_eq!(back.check("back"), Ok(()));
    let no_gain = Batchable { single: 5.0, batched: None };
    assert_eq!(no_gain.parts(8), (0.0, 5.0));
}

#[test]
fn range_errors_name_file_field_and_range() {
    let t1 = doorbell_data::PARAMETERS[0].text;
    for (line, wrong, words) in [
        ("l_ns = 1900.0", "l_ns = -1.0", &["my.toml: l_ns is -1, allowed is 0.000001 to 1000000000"][..]),
        ("l_ns = 1900.0", "l_ns = nan", &["l_ns is NaN"]),
        ("l_ns = 1900.0", "l_ns = inf", &["l_ns is inf"]),
        ("l_ns = 1900.0", "l_ns = 1e30", &["l_ns is 1000000000000000000000000000000"]),
        ("l_ns = 1900.0", "l_ns = \"fast\"", &["my.toml: l_ns: ", "string"]),
        ("l_ns = 1900.0", "", &["my.toml", "missing field `l_ns`"]),
        ("l_ns = 1900.0", "l_ns = 1900.0\nx_ns = 1.0", &["unknown field `x_ns`"]),
        ("single = 120.0", "single = 0.0", &["o_snd_ns.single is 0, allowed"]),
        ("single = 120.0", "single = []", &["o_snd_ns.single: "]),
        ("batched = 16.0", "batched = 14.9", &["o_snd_ns.batched is 14.9, allowed is 15 to 120"]),
        ("batched = 16.0", "batched = nan", &["o_snd_ns.batched is NaN"]),
        ("mtu_bytes = 4096", "mtu_bytes = 1500", &["mtu_bytes is 1500, allowed is 256, 512, 1024, 2048 or 4096"]),
        ("batch = 8", "batch = 0", &["batch is 0, allowed is 1 to 1024"]),
        ("o_unit_ns = 71.0", "o_unit_ns = -1.0", &["o_unit_ns is -1, allowed is 0 to 1000000000"]),
        ("nic_units = 4", "nic_units = 0", &["limits.nic_units is 0, allowed is 1 to 65536"]),
        ("rnic = \"hardware\"", "rnic = \"magic\"", &["my.toml: rnic: ", "magic"]),
        (
            "parameters/1",
            "parameters/2",
            &["schema is \"doorbell-parameters/2\", allowed is \"doorbell-parameters/1\""],
        ),
        ("schema = ", "scheme = ", &["my.toml: schema: it is missing"]),
        ("[limits]", "[limits", &["my.toml: line "]),
    ] {
        assert!(t1.contains(line), "{line}");
        let error = Parameters::from_toml("my.toml", &t1.replacen(line, wrong, 1)).expect_err(wrong).to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
    }
}
