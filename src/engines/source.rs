//! Values as Python expressions, escaped so that no content can become code.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::spec::Dtype;

/// A text as a string literal in ASCII, escaped so that nothing in it ends the literal or its line.
pub(crate) fn literal(text: &str) -> String {
    let mut literal = String::from("'");
    for c in text.chars() {
        let _ = match (c, u32::from(c)) {
            ('\'' | '\\', _) => write!(literal, "\\{c}"),
            (' '..='~', _) => write!(literal, "{c}"),
            (_, code @ 0..=0xff) => write!(literal, "\\x{code:02x}"),
            (_, code @ 0..=0xffff) => write!(literal, "\\u{code:04x}"),
            (_, code) => write!(literal, "\\U{code:08x}"),
        };
    }
    literal + "'"
}

/// An expression that parses a value from JSON, each line of which takes a line of the script.
pub(crate) fn loaded(value: &Value) -> String {
    let document = serde_json::to_string_pretty(value).unwrap_or_else(|_| "null".to_owned());
    let lines: String = document.lines().map(|line| format!("    {}\n", literal(line))).collect();
    format!("json.loads(\n{lines})")
}

/// Settings of an engine as a dictionary of keyword arguments, without those in `beside`, which are no
/// arguments.
pub(crate) fn arguments(options: &impl Serialize, beside: &[&str]) -> String {
    let mut text = String::from("dict(\n");
    if let Ok(Value::Object(options)) = serde_json::to_value(options) {
        for (name, value) in options.iter().filter(|(name, _)| !beside.contains(&name.as_str())) {
            let value = match value {
                Value::Null => "None".to_owned(),
                Value::Bool(value) => truth(*value).to_owned(),
                Value::String(text) => literal(text),
                number => number.to_string(),
            };
            let _ = writeln!(text, "    {name}={value},");
        }
    }
    text + ")"
}

/// The Python literal of a boolean.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The name of a dtype in torch.
pub(crate) fn torch(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "torch.bfloat16",
        Dtype::Fp16 => "torch.float16",
        Dtype::Fp32 => "torch.float32",
    }
}
