//! The values of settings, as words of a command line and in JSON.

use std::any::TypeId;
use std::fmt::Display;
use std::num::{IntErrorKind, ParseIntError};

use bytesize::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser as _, ValueParser};
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value as Json;

use crate::spec::deepspeed::{Member, number};
use crate::spec::{
    BackendChoice, CommHook, Compile, DataParallel, Dataflow, DelayedParameters, DeviceChoice,
    Dtype, Engine, Fault, LossScale, Model, NormType, Observation, Offload, Optimizer,
    OverlappedOptimizer, Schedule, SequenceGroups, Shape, ShardingStrategy,
};

/// A value that a setting can have.
pub trait Value: Clone + Send + Sync + 'static {
    /// The parser for a word of the command line.
    fn parser() -> ValueParser;

    /// The parser for a count, which is at least 1.
    fn count_parser() -> ValueParser {
        Self::parser()
    }

    /// The word of the command line; `None` if no word expresses this value.
    fn word(&self) -> Option<String>;

    /// The value in a DeepSpeed file.
    fn json(&self) -> Json {
        self.word().into()
    }

    /// The value read from a DeepSpeed file, if it is valid.
    fn of_json(_: &Json) -> Option<Self> {
        None
    }
}

/// The methods of [`Value`] for a type whose word is its display form and whose JSON is that of serde.
macro_rules! by_display_and_serde {
    () => {
        fn word(&self) -> Option<String> {
            displayed(self)
        }

        fn json(&self) -> Json {
            serde_json::json!(self)
        }

        fn of_json(json: &Json) -> Option<Self> {
            serde_json::from_value(json.clone()).ok()
        }
    };
}

/// Implements [`Value`] for types whose word is their display form and whose JSON is that of serde.
macro_rules! displayed {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn parser() -> ValueParser {
                clap::value_parser!($type).into()
            }

            by_display_and_serde!();
        })*
    };
}

displayed!(
    bool,
    Engine,
    DeviceChoice,
    BackendChoice,
    Dtype,
    Dataflow,
    Offload,
    CommHook,
    DataParallel,
    ShardingStrategy,
    Schedule,
    SequenceGroups,
    DelayedParameters,
    NormType,
    OverlappedOptimizer,
    Compile
);
displayed!(Observation, Model, Shape, Fault, Member);

/// Implements [`Value`] for whole numbers.
macro_rules! whole {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn parser() -> ValueParser {
                ValueParser::new(|text: &str| text.parse::<$type>().map_err(|it| not_whole(&it, 0)))
            }

            fn count_parser() -> ValueParser {
                ValueParser::new(|text: &str| text.parse::<$type>().map_err(|it| not_whole(&it, 1)))
            }

            by_display_and_serde!();
        })*
    };
}

whole!(u8, u64, usize);

/// The advice for a word that is not a whole number of at least `least`.
fn not_whole(error: &ParseIntError, least: u8) -> String {
    match error.kind() {
        IntErrorKind::PosOverflow => "give a smaller number".to_owned(),
        _ => format!("give a whole number from {least}"),
    }
}

fn displayed(value: &impl Display) -> Option<String> {
    Some(value.to_string())
}

impl Value for f64 {
    fn parser() -> ValueParser {
        clap::value_parser!(f64).into()
    }

    fn word(&self) -> Option<String> {
        displayed(self)
    }

    fn json(&self) -> Json {
        number(*self).into()
    }

    fn of_json(json: &Json) -> Option<Self> {
        json.as_f64()
    }
}

/// Reads a number of bytes, with or without a unit.
///
/// # Errors
/// Fails with advice on what to write.
pub fn size(text: &str) -> Result<ByteSize, &'static str> {
    text.parse().map_err(|_| "give a number of bytes, or a size like 500MB or 2GiB")
}

impl Value for ByteSize {
    fn parser() -> ValueParser {
        ValueParser::new(size)
    }

    /// The number of bytes without a unit, because a unit would round the number.
    fn word(&self) -> Option<String> {
        displayed(&self.0)
    }
}

/// A static scale as its number, or `dynamic` for the default dynamic scale.
impl Value for LossScale {
    fn parser() -> ValueParser {
        ValueParser::new(|text: &str| match (text, text.parse::<f64>()) {
            ("dynamic", _) => Ok(Self::DEFAULT),
            (_, Ok(scale)) if scale > 0.0 && scale.is_finite() => Ok(Self::Static { scale }),
            _ => Err("give a positive number, or `dynamic`"),
        })
    }

    fn word(&self) -> Option<String> {
        match *self {
            LossScale::DEFAULT => Some("dynamic".to_owned()),
            LossScale::Static { scale } => displayed(&scale),
            LossScale::Dynamic { .. } => None,
        }
    }
}

/// SGD, AdamW or Muon, each with fixed settings.
impl Value for Optimizer {
    fn parser() -> ValueParser {
        let names = PossibleValuesParser::new(["sgd", "adamw", "muon"]);
        let named = |name: String| match name.as_str() {
            "sgd" => Self::EXACT_SGD,
            "adamw" => Self::ADAMW,
            _ => Self::Muon,
        };
        names.map(named).into()
    }

    fn word(&self) -> Option<String> {
        match *self {
            Optimizer::EXACT_SGD => Some("sgd".to_owned()),
            Optimizer::ADAMW => Some("adamw".to_owned()),
            Optimizer::Muon => Some("muon".to_owned()),
            _ => None,
        }
    }
}

/// The type of a setting's field in a request: an optional value, or a list.
pub trait Slot: Clone + Default + 'static {
    /// The type of a single value.
    type Item: Value;

    /// The command-line argument that fills the slot, made from `arg`; `is_count` is true if 0 is refused.
    fn arg(arg: Arg, is_count: bool) -> Arg;

    /// The slot as a command line fills it.
    fn of(matches: &ArgMatches, id: &str) -> Self;

    /// The slot as a DeepSpeed file fills it.
    fn of_json(json: &Json) -> Self;

    /// The requested values; empty if the setting is not set.
    fn values(&self) -> &[Self::Item];
}

impl<T: Value> Slot for Option<T> {
    type Item = T;

    fn arg(arg: Arg, is_count: bool) -> Arg {
        let arg = arg.value_parser(if is_count { T::count_parser() } else { T::parser() });
        if TypeId::of::<T>() != TypeId::of::<bool>() {
            return arg;
        }
        // A flag without a value turns the setting on.
        arg.value_name("BOOL").num_args(0..=1).default_missing_value("true")
    }

    fn of(matches: &ArgMatches, id: &str) -> Self {
        matches.get_one(id).cloned()
    }

    fn of_json(json: &Json) -> Self {
        T::of_json(json)
    }

    fn values(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Value> Slot for Vec<T> {
    type Item = T;

    fn arg(arg: Arg, _: bool) -> Arg {
        let arg = arg.value_parser(T::parser()).action(ArgAction::Append);
        arg.value_delimiter(',').num_args(1..)
    }

    fn of(matches: &ArgMatches, id: &str) -> Self {
        matches.get_many(id).into_iter().flatten().cloned().collect()
    }

    fn of_json(json: &Json) -> Self {
        T::of_json(json).into_iter().collect()
    }

    fn values(&self) -> &[T] {
        self
    }
}
