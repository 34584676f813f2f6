//! Leaves the user's own text out of an attachment: the ranks' words, and free text in a configuration.

use serde_json::Value;

use zprobe_diagnose::account::without_words;
use zprobe_model::trace::{Event, Record};

/// The placeholder for a text that only `--with-logs` adds.
pub const LEFT_OUT: &str = "<left out>";

/// The words of DeepSpeed's configuration that are no free text: values of its settings, and names of classes.
const SETTINGS: &str = "auto none cpu nvme fp16 bf16 fp32 fp64 float16 bfloat16 float32 SGD Adam AdamW Adagrad Lamb Lion \
                        Muon OneBitAdam ZeroOneAdam OneBitLamb LRRangeTest OneCycle WarmupLR WarmupDecayLR \
                        WarmupCosineLR";

/// Returns true if an event has the words of a rank.
pub fn has_words(event: &Event) -> bool {
    matches!(event, Event::Failed { .. } | Event::Stderr { .. } | Event::ProtocolViolated { .. })
}

/// Leaves the words of a rank and free text in the configuration out of a record. Returns `None` for data that are no
/// record.
pub fn leave_out_of_record(mut value: Value) -> Option<Value> {
    let Record { event, .. } = serde_json::from_value(value.clone()).ok()?;
    if has_words(&event) {
        value["event"] = serde_json::to_value(without_words(event)).ok()?;
    }
    if let Some(spec) = value.pointer_mut("/event/spec") {
        leave_out_of_specification(spec);
    }
    Some(value)
}

/// Leaves free text out of the configuration in a specification. Returns true if there was any.
pub fn leave_out_of_specification(spec: &mut Value) -> bool {
    spec.get_mut("deepspeed_config").is_some_and(leave_out)
}

/// Leaves out every text of a configuration that is not the value of a setting; numbers and switches stay. Returns true
/// if there was any.
fn leave_out(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            let is_free = !SETTINGS.split_whitespace().any(|word| word == text.as_str());
            if is_free {
                LEFT_OUT.clone_into(text);
            }
            is_free
        }
        Value::Array(items) => items.iter_mut().fold(false, |any, item| leave_out(item) | any),
        Value::Object(items) => items.values_mut().fold(false, |any, item| leave_out(item) | any),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_words_of_settings_stay_and_free_text_does_not() {
        let mut spec = json!({"deepspeed_config": {
            "train_batch_size": "auto", "bf16": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"lr": 1}},
            "wandb": {"project": "hunter2", "tags": ["hunter2"]},
        }});
        assert!(leave_out_of_specification(&mut spec));
        let expected = json!({"deepspeed_config": {
            "train_batch_size": "auto", "bf16": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"lr": 1}},
            "wandb": {"project": LEFT_OUT, "tags": [LEFT_OUT]},
        }});
        assert_eq!(spec, expected);
    }
}
