//! `zprobe compare`: two runs side by side, either recorded earlier or made now.

mod comparison;
mod gaps;
pub mod render;
mod side;

pub use self::comparison::{
    ComparedFindings, ComparedStep, ComparedWeights, Comparison, Pair, SettingDifference,
};
pub use self::gaps::{Gap, NormGap};
pub use self::side::{Side, made};
