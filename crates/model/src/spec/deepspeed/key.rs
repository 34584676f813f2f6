//! The description of one key of a DeepSpeed configuration: its values, and how zprobe treats the key.

use super::document::Json;
use Neutral::{Absent, NothingEnabled};
use Shape::{
    AtLeast, Bool, Dict, Free, Model, ModelOrBool, NonNegative, Number, OneOf, Text, Whole,
};

/// A key of a DeepSpeed configuration.
pub(super) struct Key {
    /// The full dotted path of the key.
    pub path: &'static str,
    /// The values that the key takes.
    pub shape: Shape,
    /// The treatment of the key by zprobe.
    pub role: Role,
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `true` or `false`.
    Bool,
    /// Any JSON number.
    Number,
    /// A number that is not negative.
    NonNegative,
    /// A whole number; `5e8` counts as one, as in pydantic.
    Whole,
    /// A whole number that is at least this number.
    AtLeast(i64),
    /// Any string.
    Text,
    /// One string out of a list.
    OneOf(&'static [&'static str]),
    /// Any value; the keys of an object are not checked.
    Free,
    /// An object in which DeepSpeed refuses unknown keys (pydantic models with `extra="forbid"`).
    Model,
    /// An object as in [`Shape::Model`], or the boolean that was once used instead of the object.
    ModelOrBool,
    /// An object in which DeepSpeed ignores unknown keys silently.
    Dict,
}

/// The treatment of a key by zprobe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// The value of the key becomes part of the run.
    Used,
    /// The key is accepted silently: it cannot change which gradients are summed, nor into which sum.
    Inert,
    /// The key is accepted with this note, because the file's owner may expect an effect.
    Noted(&'static str),
    /// The native engine supports only the neutral value of the key; the text says why.
    NotYet(Neutral, &'static str),
}

/// The value of a key that has the same effect as leaving the key out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Neutral {
    /// A boolean: this value is neutral.
    Bool(bool),
    /// A number: this value is neutral.
    Number(f64),
    /// A string: this value is neutral.
    Text(&'static str),
    /// A section without any `"enabled": true`.
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

    /// Advice on how to make the key neutral.
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
    /// True if DeepSpeed refuses unknown keys in this section instead of ignoring them.
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

    /// The values that the key takes, in words for a message.
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
