//! The parsed tree of a DeepSpeed file: keys with their positions and values.

use serde_json::{Map, Number, Value};

use super::message::Spot;

/// The largest whole number that is accepted: above 2^53 a float cannot represent every whole number.
pub(super) const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;

/// A value in a DeepSpeed file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, whole or not.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(Vec<Member>),
}

/// A key of an object, with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    /// The full path of the key, as written, and its position in the file.
    pub spot: Spot,
    /// The last part of the key's path.
    pub key: String,
    /// The value of the key.
    pub value: Json,
}

impl Json {
    /// The placeholder for a value that the caller fills in, as Hugging Face's Trainer does.
    const AUTO: &str = "auto";

    /// True if the value is `"auto"`.
    pub(super) fn is_auto(&self) -> bool {
        matches!(self, Json::Text(text) if text == Json::AUTO)
    }

    /// The value as a number; `None` for any other type.
    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            Json::Number(number) => number.as_f64(),
            _ => None,
        }
    }

    /// The value as a finite number that is 0 or more; `None` for any other value.
    pub(super) fn as_non_negative(&self) -> Option<f64> {
        self.as_number().filter(|number| *number >= 0.0 && number.is_finite())
    }

    /// The value as a whole number. `5e8` and `4.0` are whole numbers, as in pydantic.
    pub(super) fn as_whole(&self) -> Option<i64> {
        let number = self.as_number()?;
        (number.fract() == 0.0 && number.abs() <= LARGEST_WHOLE).then_some(number as i64)
    }

    /// The value, or its kind, in words for a message.
    pub(super) fn in_words(&self) -> String {
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Number(value) => value.to_string(),
            Json::Text(value) => format!("{:?}", short(value)),
            Json::List(_) => "a list".to_owned(),
            Json::Object(_) => "an object".to_owned(),
        }
    }

    /// Converts the value to the JSON that the real DeepSpeed gets.
    fn content(&self) -> Value {
        match self {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(value) => Value::Number(value.clone()),
            Json::Text(value) => Value::String(value.clone()),
            Json::List(values) => values.iter().map(Json::content).collect(),
            Json::Object(members) => Value::Object(content(members)),
        }
    }
}

/// A number as Python's hjson reads it: `5e8` and `1.0` are whole numbers. `None` if `value` is not finite.
pub(in crate::spec) fn number(value: f64) -> Option<Number> {
    const LIMIT: f64 = 1e10;
    if value.fract() == 0.0 && value.abs() < LIMIT {
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}

/// Converts an object to the JSON that the real DeepSpeed gets.
pub(super) fn content(members: &[Member]) -> Map<String, Value> {
    members.iter().map(|member| (member.key.clone(), member.value.content())).collect()
}

/// Finds the member with this key.
pub(super) fn member<'a>(members: &'a [Member], key: &str) -> Option<&'a Member> {
    members.iter().find(|member| member.key == key)
}

/// The advice about a string that was probably meant to be another value.
pub(super) fn meant_by(text: &str) -> Option<&'static str> {
    // A string without quotes extends to the end of the line.
    match text.trim_end_matches([',', '}', ']', ' ']).trim_start() {
        "True" => Some("write true"),
        "False" => Some("write false"),
        "None" => Some("write null"),
        word => match word.parse::<f64>() {
            Ok(number) if number.is_finite() => Some("remove the quotes"),
            Ok(_) => Some("write a number that is finite"),
            Err(_) => None,
        },
    }
}

/// The text, or its beginning if the text is too long for a message.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
