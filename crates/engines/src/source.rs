//! Python expressions for values, escaped so that no content can become code.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use zprobe_model::spec::Dtype;

/// A text as a Python string literal in ASCII, escaped so that no character ends the literal or its line.
pub fn literal(text: &str) -> String {
    format!("'{}'", escaped(text, &['\'', '\\']))
}

/// A text for a Python comment: in ASCII and on one line.
pub fn comment(text: &str) -> String {
    escaped(text, &[])
}

/// A text in ASCII. Characters that are not visible, and the characters in `also`, are escaped.
fn escaped(text: &str, also: &[char]) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        let _ = match (c, u32::from(c)) {
            (c, _) if also.contains(&c) => write!(escaped, "\\{c}"),
            (' '..='~', _) => write!(escaped, "{c}"),
            (_, code @ 0..=0xff) => write!(escaped, "\\x{code:02x}"),
            (_, code @ 0..=0xffff) => write!(escaped, "\\u{code:04x}"),
            (_, code) => write!(escaped, "\\U{code:08x}"),
        };
    }
    escaped
}

/// A value as a Python expression, wrapped to readable lines.
pub fn expression(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| member(key, value)).collect();
            format!("{{\n{}}}", packed(&members))
        }
        value => inner(value),
    }
}

/// The members of a list or a dictionary as lines. Each line has as many members as fit.
pub fn packed(members: &[String]) -> String {
    const WIDTH: usize = 100;
    let mut lines: Vec<String> = Vec::new();
    for member in members {
        match lines.last_mut().filter(|line| line.len() + member.len() + 2 <= WIDTH) {
            Some(line) => *line += &format!(" {member},"),
            None => lines.push(format!("    {member},")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn member(key: &str, value: &Value) -> String {
    format!("{}: {}", literal(key), inner(value))
}

/// A value as a Python expression on one line.
fn inner(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(value) => truth(*value).to_owned(),
        Value::String(text) => literal(text),
        Value::Number(number) => number.to_string(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(inner).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| member(key, value)).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// The settings of an engine as keyword arguments that follow other arguments. Leaves out the settings in `other`,
/// which are not arguments, and settings that are false or not set, as in torch's defaults.
pub fn arguments(options: &impl Serialize, other: &[&str]) -> String {
    let Ok(Value::Object(options)) = serde_json::to_value(options) else { return String::new() };
    let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
    let options =
        options.iter().filter(|(name, value)| !other.contains(&name.as_str()) && is_set(value));
    options.map(|(name, value)| format!(", {name}={}", inner(value))).collect()
}

/// The Python literal of a boolean.
pub fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The name of a dtype in torch.
pub fn torch(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "torch.bfloat16",
        Dtype::Fp16 => "torch.float16",
        Dtype::Fp32 => "torch.float32",
    }
}
