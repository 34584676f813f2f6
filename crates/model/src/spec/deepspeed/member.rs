//! One key of a DeepSpeed configuration with its value, as in the flag's `zero_optimization.sub_group_size=100`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::complete::{REPLACED, put};
use crate::spec::settings::ALL;

/// A key of a DeepSpeed configuration with its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// The dotted path of the key.
    path: String,
    /// The value of the key.
    value: Value,
}

impl Member {
    /// The dotted path of the key.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the value of `member` at its path.
    pub fn write(config: &mut Map<String, Value>, member: &Self) {
        put(config, &member.path, member.value.clone());
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path, self.value)
    }
}

impl FromStr for Member {
    type Err = String;

    /// Reads `PATH=VALUE`. The value is JSON, or a string if it is not valid JSON.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((path, value)) = text.split_once('=') else {
            return Err("write KEY=VALUE, as in zero_optimization.sub_group_size=100".to_owned());
        };
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(format!("`{path}` is not a key; separate sections with single dots"));
        }
        let key = path.split('.').next().unwrap_or_default();
        if REPLACED.contains(&key) {
            return Err(format!("zprobe brings its own `{key}`; see --optimizer"));
        }
        for setting in ALL.iter().map(|setting| setting.describe()) {
            let keys = setting.key.unwrap_or_default();
            if keys.split(", ").any(|known| known == path) {
                return Err(format!("`{path}` has a flag of its own: {}", setting.flag));
            }
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        Ok(Self { path: path.to_owned(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_put_at_its_path_and_written_back_as_it_was_read() {
        let mut config = Map::new();
        for text in ["prescale_gradients=true", "zero_optimization.sub_group_size=100"] {
            let member: Member = text.parse().unwrap();
            assert_eq!(member.to_string(), text);
            Member::write(&mut config, &member);
        }
        let text = Value::Object(config).to_string();
        assert_eq!(
            text,
            r#"{"prescale_gradients":true,"zero_optimization":{"sub_group_size":100}}"#
        );
        let named: Member = "communication_data_type_of=bf16".parse().unwrap();
        assert_eq!(named.value, "bf16");
    }

    #[test]
    fn a_key_that_has_a_flag_or_is_no_key_is_refused() {
        let refusal = |text: &str| text.parse::<Member>().unwrap_err();
        assert!(refusal("zero_optimization.stage=2").ends_with("--stage"));
        assert!(refusal("optimizer.type=Muon").contains("--optimizer"));
        for wrong in ["prescale_gradients", "=true", "a..b=1"] {
            refusal(wrong);
        }
    }
}
