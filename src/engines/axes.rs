//! The values of an engine's settings that are worth trying.

use serde::{Deserialize, Serialize};

use crate::spec::Shape;

/// A value of an axis: a few words for people, and the arguments of `zprobe run`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// Label for people, such as `stage 1`.
    pub label: String,
    /// The arguments, such as `--stage 1`; none for the default.
    pub arguments: Vec<String>,
}

impl Choice {
    /// A choice of these arguments, separated by spaces.
    pub(crate) fn new(label: &str, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { label: label.to_owned(), arguments }
    }

    fn shape(shape: Shape) -> Self {
        Self::new(shape.name(), &format!("--shape {shape}"))
    }
}

/// The values of an engine's settings that are worth trying, by axis.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// All bases: combinations of the stage and the dtypes.
    pub bases: Vec<Vec<Choice>>,
    /// Bases against which each factor is tried alone.
    pub factor_bases: Vec<Vec<Choice>>,
    /// Axes with their unusual values. Shapes are one of them.
    pub factors: Vec<Vec<Choice>>,
    /// Bases against which pairs are tried.
    pub pair_bases: Vec<Vec<Choice>>,
    /// The values that each shape is paired with.
    pub partners: Vec<Choice>,
    /// Shapes of the model.
    pub shapes: Vec<Choice>,
    /// Axes of the full product with the bases: each takes its default or one of these values.
    pub grid: Vec<Vec<Choice>>,
}

/// Choices from labels and arguments.
pub(super) fn choices(pairs: &[(&str, &str)]) -> Vec<Choice> {
    pairs.iter().map(|(label, arguments)| Choice::new(label, arguments)).collect()
}

/// All shapes except `others`.
pub(super) fn shapes_without(others: &[Shape]) -> Vec<Choice> {
    let shapes = Shape::ALL.iter().filter(|shape| !others.contains(shape));
    shapes.map(|shape| Choice::shape(*shape)).collect()
}

/// Two clipping norms: one that no gradient of the coded model exceeds, and one that each exceeds.
pub(super) fn clipping() -> Vec<Choice> {
    choices(&[
        ("clipping never", "--gradient-clipping 1000000000"),
        ("clipping always", "--gradient-clipping 0.125"),
    ])
}
