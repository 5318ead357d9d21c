//! Fuzz function for records of measurements.

use doorbell_record::{Buckets, Environment, Parameters, PointRecord, PointResult, Quantity, RunRecord};
use serde_json::Value;

use super::super::parameters;
use super::{Choices, json};

const QUANTITIES: [Quantity; 6] = [
    Quantity::MedianLatency,
    Quantity::TailLatency,
    Quantity::MessageRate,
    Quantity::Throughput,
    Quantity::RnrNaks,
    Quantity::Fairness,
];

/// Parses a record. The record is `data` itself, or a valid record with mutations that `data` selects.
pub fn fuzz_records(data: &[u8]) {
    let mut choices = Choices(data);
    if choices.byte() < 64 {
        read(choices.0);
        return;
    }
    let mut record = honest();
    for _ in 0..choices.below(6) {
        json::change(&mut record, &mut choices);
    }
    read(record.to_string().as_bytes());
}

fn read(bytes: &[u8]) {
    if let Ok(record) = PointRecord::parse(bytes) {
        let again = serde_json::to_vec(&record).expect("a record that was read can be written");
        assert!(PointRecord::parse(&again).is_ok(), "a written record can be read again");
        for result in &record.repetitions {
            for quantity in QUANTITIES {
                assert!(quantity.of(result).is_none_or(f64::is_finite), "{}", quantity.name());
            }
            drop(result.histogram_ns.as_ref().map(Buckets::to_histogram));
        }
    }
    if let Ok(record) = serde_json::from_slice::<RunRecord>(bytes) {
        let _ = record.parameters.check();
    }
}

fn honest() -> Value {
    let result = PointResult {
        bytes: 16,
        messages: 100,
        seconds: 0.5,
        messages_per_s: 200.0,
        bytes_per_s: 3200.0,
        histogram_ns: Some(Buckets(vec![(1000, 90), (2000, 10)])),
        ..PointResult::default()
    };
    let record = PointRecord {
        format: PointRecord::FORMAT.to_owned(),
        schema: PointRecord::SCHEMA,
        experiment: "send-receive-latency".to_owned(),
        series: "sequential".to_owned(),
        x: 16.0,
        environment: Environment {
            doorbell: "0.1.0".to_owned(),
            kernel: "6.1".to_owned(),
            cpu: "any".to_owned(),
            cpus: 2,
            unix_time_s: 1_700_000_000,
            device: "doorbell0".to_owned(),
            provider: "soft".to_owned(),
            udp_port: 4791,
            active_mtu: 4096,
            receive_buffer_bytes: 1 << 22,
            machine: doorbell_machine::Machine::default(),
            adapter: None,
            soft_options: None,
            fault_plan: None,
            pinning: None,
            peer: None,
            hosts: Vec::new(),
            testbed: None,
        },
        parameters: Parameters { sizes: vec![16], ..parameters() },
        repetitions: vec![result],
    };
    serde_json::to_value(record).expect("a record can be written")
}
