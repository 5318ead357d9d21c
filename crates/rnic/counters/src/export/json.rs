//! Readings as JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::{Common, Interval, Look, Raw, is_gauge};

/// Name of the JSON layout.
pub const SCHEMA: &str = "doorbell-counters/1";

/// Returns one reading of all devices as a JSON object.
pub fn of(look: &Look) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "schema": SCHEMA,
        "unix_time_s": now.as_secs_f64(),
        "devices": look.devices.iter().map(device).collect::<Vec<_>>(),
        "notes": look.notes,
    })
}

/// Returns the identity of a device.
pub fn identity(device: &Interval) -> Map<String, Value> {
    let identity = &device.sample.identity;
    let object = json!({
        "device": identity.label,
        "kind": identity.kind.name(),
        "name": identity.name,
        "port": identity.port,
        "address": identity.address,
        "gid": identity.gid,
        "udp_port": identity.udp_port,
        "program": identity.program,
        "pid": identity.pid,
        "netdev": identity.netdev,
        "driver": identity.driver,
    });
    if let Value::Object(map) = object { map } else { Map::new() }
}

fn common<T: Into<Value>>(of: impl Fn(Common) -> Option<T>) -> Value {
    Common::ALL
        .into_iter()
        .map(|common| (common.name().to_owned(), of(common).map_or(Value::Null, Into::into)))
        .collect()
}

/// Returns the totals of a device since it was opened.
pub fn totals(raw: &Raw) -> Value {
    common(|common| common.total(raw))
}

fn gauges(raw: &Raw) -> Value {
    raw.iter().filter(|(name, _)| is_gauge(name)).map(|(name, &value)| (name.to_string(), json!(value))).collect()
}

fn device(device: &Interval) -> Value {
    let mut object = identity(device);
    let (raw, rates) = (&device.sample.raw, device.rates.as_ref());
    let others: Map<String, Value> = rates
        .iter()
        .flat_map(|rates| rates.others_per_second())
        .map(|(name, rate)| (name.to_string(), json!(rate)))
        .collect();
    let more = [
        ("closed", json!(device.sample.ended)),
        ("seconds", json!(rates.map(|rates| rates.seconds))),
        ("per_second", common(|common| rates?.per_second(common))),
        ("counted", common(|common| rates?.delta(common))),
        ("totals", totals(raw)),
        ("others_per_second", json!(others)),
        ("levels", gauges(raw)),
        ("remarks", json!(rates.map(|rates| rates.remarks.as_slice()).unwrap_or_default())),
    ];
    object.extend(more.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(object)
}
