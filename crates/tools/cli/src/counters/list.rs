//! List of the devices and the meaning of their counters.

use std::process::ExitCode;

use doorbell_counters::export::json as exported;
use doorbell_counters::{Common, Interval, Monitor, News, Raw};
use serde_json::{Value, json};

use super::{NO_DEVICE, show_news};
use crate::failure::Failure;
use crate::output::{line, note, pretty};

/// Returns the raw counters from which a common counter of a device is computed, and the meaning of the common counter.
fn origin(common: Common, raw: &Raw) -> Option<(Vec<String>, &'static str)> {
    let rule = common.rule(raw)?;
    Some((rule.present(raw).map(|(name, _)| name.to_string()).collect(), rule.counts))
}

fn json(device: &Interval) -> Value {
    let mut object = exported::identity(device);
    let raw = &device.sample.raw;
    let origins = Common::ALL.into_iter().map(|common| {
        let origin = origin(common, raw).map(|(from, counts)| json!({ "from": from, "counts": counts }));
        (common.name().to_owned(), json!(origin))
    });
    object.insert("counters".to_owned(), origins.collect());
    let all: Value = raw.iter().map(|(name, &value)| (name.to_string(), json!(value))).collect();
    object.insert("raw".to_owned(), all);
    Value::Object(object)
}

pub(super) fn run(mut monitor: Monitor, as_json: bool) -> Result<ExitCode, Failure> {
    let look = monitor.look();
    show_news(&mut News::default(), &look);
    if as_json {
        let devices: Vec<Value> = look.devices.iter().map(json).collect();
        pretty(&json!({ "schema": "doorbell-devices/1", "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if look.devices.is_empty() {
        note!("{NO_DEVICE}");
    }
    for device in &look.devices {
        let identity = &device.sample.identity;
        let gid = identity.gid.map_or_else(String::new, |gid| format!(", GID {gid}"));
        line(format_args!("{}: {} {}{gid}", identity.label, identity.kind.name(), device.owner()))?;
        for common in Common::ALL {
            match origin(common, &device.sample.raw) {
                Some((from, counts)) => line(format_args!("  {:<16} {}: {counts}", common.name(), from.join(" + ")))?,
                None => line(format_args!("  {:<16} -", common.name()))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
