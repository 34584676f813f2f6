//! The specification of the run, flat.

use serde_json::Value;

use crate::spec::RunSpec;

/// A setting, by its path in the specification.
pub(super) struct Fact {
    pub name: String,
    pub value: String,
}

/// Every setting that is there.
pub(super) fn of(spec: &RunSpec) -> serde_json::Result<Vec<Fact>> {
    let mut facts = Vec::new();
    flatten(String::new(), &serde_json::to_value(spec)?, &mut facts);
    Ok(facts)
}

fn flatten(name: String, value: &Value, facts: &mut Vec<Fact>) {
    match value {
        Value::Null => {}
        Value::Object(members) => {
            for (key, member) in members {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(format!("{name}{dot}{key}"), member, facts);
            }
        }
        Value::String(text) => facts.push(Fact { name, value: text.clone() }),
        Value::Array(items) if items.is_empty() => {}
        other => facts.push(Fact { name, value: other.to_string() }),
    }
}
