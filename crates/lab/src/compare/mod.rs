//! Two runs side by side: recorded ones, or two that are made now.

mod comparison;
mod gaps;
pub mod render;
mod side;

pub use self::comparison::{Comparison, Difference, Findings, Pair, Step, Weights};
pub use self::gaps::{Gap, NormGap};
pub use self::side::{Side, made};
