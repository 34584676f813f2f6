//! Values as Python expressions, escaped so that no content can become code.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use zprobe_model::spec::Dtype;

/// A text as a string literal in ASCII, escaped so that nothing in it ends the literal or its line.
pub fn literal(text: &str) -> String {
    format!("'{}'", escaped(text, &['\'', '\\']))
}

/// A text as the words of a comment, in ASCII and in one line.
pub fn comment(text: &str) -> String {
    escaped(text, &[])
}

/// A text in ASCII, in which all that is not visible, and these characters, are escaped.
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

/// A value as an expression, in lines of a width at which they can be read.
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

/// Members of a list or a dictionary, as many to a line as there is room for.
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

/// A value in one line.
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

/// Settings of an engine as keyword arguments behind others, without those in `beside`, which are no arguments, and
/// those that are false or not set, which is torch's default.
pub fn arguments(options: &impl Serialize, beside: &[&str]) -> String {
    let Ok(Value::Object(options)) = serde_json::to_value(options) else { return String::new() };
    let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
    let options =
        options.iter().filter(|(name, value)| !beside.contains(&name.as_str()) && is_set(value));
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
