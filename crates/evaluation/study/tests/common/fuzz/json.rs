//! Mutations of JSON values.

use serde_json::{Value, json};

use super::Choices;

/// Changes a JSON value at one place. The change replaces a value, removes or adds a field, or duplicates an element.
pub fn change(value: &mut Value, choices: &mut Choices<'_>) {
    let descends = choices.byte() < 200;
    match value {
        Value::Object(fields) if descends && !fields.is_empty() => {
            let at = choices.below(fields.len());
            let Some(name) = fields.keys().nth(at).cloned() else { return };
            match choices.byte() {
                0..16 => drop(fields.remove(&name)),
                16..32 => drop(fields.insert(format!("{name}s"), any(choices))),
                _ => change(&mut fields[&name], choices),
            }
        }
        Value::Array(elements) if descends && !elements.is_empty() => {
            let at = choices.below(elements.len());
            match choices.byte() {
                0..16 => drop(elements.remove(at)),
                16..48 => elements.push(elements[at].clone()),
                _ => change(&mut elements[at], choices),
            }
        }
        Value::Number(number) if choices.chance() => {
            // A number close to the old one.
            let near = number.as_u64().unwrap_or(1).wrapping_add(u64::from(choices.byte())).wrapping_sub(128);
            *value = json!(near);
        }
        other => *other = any(choices),
    }
}

/// Returns an arbitrary value.
pub fn any(choices: &mut Choices<'_>) -> Value {
    match choices.byte() % 12 {
        0 => Value::Null,
        1 => json!(choices.chance()),
        2 => json!(0),
        3 => json!(choices.byte()),
        4 => json!(u64::MAX - u64::from(choices.byte() % 2)),
        5 => json!(1_u64 << (choices.byte() % 64)),
        6 => json!(-1),
        7 => json!([1e300, -0.5, 5e-324, 1e15][choices.below(4)]),
        8 => json!("x".repeat(choices.below(300))),
        9 => json!(["send", "latency", "direct-read-send", "write", "seconds", "shared-write"][choices.below(6)]),
        10 => json!([any_number(choices), any_number(choices)]),
        _ => json!({ "seconds": any_number(choices) }),
    }
}

fn any_number(choices: &mut Choices<'_>) -> Value {
    json!(1_u64 << (choices.byte() % 64))
}
