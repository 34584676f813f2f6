//! What is known about one key of a DeepSpeed configuration: its values, and its bearing on a run.

use super::document::Json;
use Neutral::{Absent, NothingEnabled};
use Shape::{
    AtLeast, Bool, Dict, Free, Model, ModelOrBool, NonNegative, Number, OneOf, Text, Whole,
};

/// One key.
pub(super) struct Key {
    /// Full path.
    pub path: &'static str,
    /// Which values it takes.
    pub shape: Shape,
    /// What zprobe does with it.
    pub role: Role,
}

/// Which values a key takes.
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
    /// A whole number from this on.
    AtLeast(i64),
    /// A string.
    Text,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// Whatever stands there; inside an object no key is checked.
    Free,
    /// An object in which DeepSpeed refuses unknown keys (pydantic models with `extra="forbid"`).
    Model,
    /// [`Shape::Model`], or the boolean that once stood in its place.
    ModelOrBool,
    /// An object in which DeepSpeed passes over unknown keys without a word.
    Dict,
}

/// What zprobe does with a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Becomes part of the run.
    Used,
    /// Nothing to do: it cannot change which gradients are summed, nor into what.
    Inert,
    /// Nothing to do, and its owner may wonder why.
    Noted(&'static str),
    /// The native engine has only the neutral value.
    NotYet(Neutral, &'static str),
}

/// The value of a key with which DeepSpeed does what it does without the key.
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
    /// Only the key's absence.
    Absent,
}

impl Neutral {
    /// Whether this is the neutral value.
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

    /// What to do to get there.
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
    /// Whether DeepSpeed refuses a key that this section does not have, rather than pass it over.
    pub(super) fn refuses_unknown_keys(self) -> bool {
        matches!(self, Model | ModelOrBool)
    }

    /// Whether the keys of this section have rows of their own.
    pub(super) fn is_section(self) -> bool {
        matches!(self, Model | ModelOrBool | Dict)
    }

    /// Whether the key takes this value.
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

    /// Which values the key takes, in words.
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
