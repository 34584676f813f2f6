//! Description of one key of a DeepSpeed configuration: its values, and its effect on a run.

use super::document::Json;
use Neutral::{Absent, NothingEnabled};
use Shape::{
    AtLeast, Bool, Dict, Free, Model, ModelOrBool, NonNegative, Number, OneOf, Text, Whole,
};

/// A key of a DeepSpeed configuration.
pub(super) struct Key {
    /// Full path.
    pub path: &'static str,
    /// Values that the key takes.
    pub shape: Shape,
    /// Treatment of the key by zprobe.
    pub role: Role,
}

/// Values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `true` or `false`.
    Bool,
    /// Any number.
    Number,
    /// A number that is not negative.
    NonNegative,
    /// A whole number; pydantic takes `5e8` for one.
    Whole,
    /// A whole number, at least this one.
    AtLeast(i64),
    /// A string.
    Text,
    /// Any string of this list.
    OneOf(&'static [&'static str]),
    /// Any value; the keys of an object are not checked.
    Free,
    /// An object in which DeepSpeed refuses unknown keys (pydantic models with `extra="forbid"`).
    Model,
    /// [`Shape::Model`], or the boolean that once stood in its place.
    ModelOrBool,
    /// An object in which DeepSpeed ignores unknown keys silently.
    Dict,
}

/// Treatment of a key by zprobe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// The value becomes part of the run.
    Used,
    /// Accepted silently: the key cannot change which gradients are summed, nor into what.
    Inert,
    /// Accepted with this note, because the file's owner may expect an effect.
    Noted(&'static str),
    /// Supported by the native engine only with the neutral value; the text says why.
    NotYet(Neutral, &'static str),
}

/// The value of a key that has the same effect as leaving the key out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Neutral {
    /// This boolean.
    Bool(bool),
    /// This number.
    Number(f64),
    /// This string.
    Text(&'static str),
    /// A section in which nothing is `"enabled": true`.
    NothingEnabled,
    /// No value: only the absence of the key is neutral.
    Absent,
}

impl Neutral {
    /// True if `value` is the neutral value.
    pub(super) fn is(self, value: &Json) -> bool {
        match (self, value) {
            (Neutral::Bool(neutral), Json::Bool(value)) => neutral == *value,
            (Neutral::Number(neutral), value @ Json::Number(_)) => {
                value.as_number() == Some(neutral)
            }
            (Neutral::Text(neutral), Json::Text(value)) => neutral == value,
            (NothingEnabled, value) => !enables_something(value),
            _ => false,
        }
    }

    /// Advice on making the key neutral.
    pub(super) fn remedy(self) -> String {
        match self {
            Neutral::Bool(neutral) => format!("set it to {neutral} in a copy of the file"),
            Neutral::Number(neutral) => format!("set it to {neutral} in a copy of the file"),
            Neutral::Text(neutral) => format!("set it to {neutral:?} in a copy of the file"),
            NothingEnabled => "disable it in a copy of the file".to_owned(),
            Absent => "remove it in a copy of the file".to_owned(),
        }
    }
}

fn enables_something(value: &Json) -> bool {
    match value {
        Json::Object(members) => members.iter().any(|member| {
            (member.key == "enabled" && member.value == Json::Bool(true))
                || enables_something(&member.value)
        }),
        Json::List(values) => values.iter().any(enables_something),
        _ => false,
    }
}

impl Shape {
    /// True if DeepSpeed refuses unknown keys in this section rather than ignore them.
    pub(super) fn refuses_unknown_keys(self) -> bool {
        matches!(self, Model | ModelOrBool)
    }

    /// True if the keys of this section have rows of their own in the registry.
    pub(super) fn is_section(self) -> bool {
        matches!(self, Model | ModelOrBool | Dict)
    }

    /// True if the key takes this value.
    pub(super) fn takes(self, value: &Json) -> bool {
        match self {
            Bool => matches!(value, Json::Bool(_)),
            Number => matches!(value, Json::Number(_)),
            NonNegative => value.as_non_negative().is_some(),
            Whole => value.as_whole().is_some(),
            AtLeast(least) => value.as_whole().is_some_and(|whole| whole >= least),
            Text => matches!(value, Json::Text(_)),
            OneOf(words) => matches!(value, Json::Text(text) if words.contains(&text.as_str())),
            Free => true,
            Model | Dict => matches!(value, Json::Object(_)),
            ModelOrBool => matches!(value, Json::Object(_) | Json::Bool(_)),
        }
    }

    /// Description of the values that the key takes.
    pub(super) fn in_words(self) -> String {
        match self {
            Bool => "true or false".to_owned(),
            Number => "a number".to_owned(),
            NonNegative => "a number, 0 or more".to_owned(),
            Whole => "a whole number".to_owned(),
            AtLeast(least) => format!("a whole number, {least} or more"),
            Text => "a string".to_owned(),
            OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                format!("one of {}", words.join(", "))
            }
            Free => "anything".to_owned(),
            Model | ModelOrBool | Dict => "an object".to_owned(),
        }
    }
}
