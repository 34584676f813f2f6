//! The values of an engine's settings that are worth trying.

use serde::{Deserialize, Serialize};

use zprobe_model::spec::Shape;

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
    pub fn new(label: &str, arguments: &str) -> Self {
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

/// The axes of an engine without settings of its own: those that every engine has.
pub(super) fn plain() -> Axes {
    let dtypes = [("bf16", "--dtype bf16"), ("fp16", "--dtype fp16"), ("fp32", "--dtype fp32")];
    let bases: Vec<_> = dtypes.iter().map(|dtype| choices(&[*dtype])).collect();
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    let groups = ("2 parameter groups", "--parameter-groups 2");
    Axes {
        factor_bases: bases.clone(),
        pair_bases: bases[..1].to_vec(),
        bases,
        factors: vec![choices(&counts), choices(&[groups]), clipping()],
        partners: choices(&[counts[0], counts[1], counts[2], groups]),
        shapes: shapes_without(&[
            Shape::LateNoSync,
            Shape::Experts,
            Shape::LossBackward,
            Shape::CoalescedReduction,
        ]),
        grid: vec![choices(&counts)],
    }
}

/// Two clipping norms: one that no gradient of the coded model exceeds, and one that each exceeds.
pub(super) fn clipping() -> Vec<Choice> {
    choices(&[
        ("clipping never", "--gradient-clipping 1000000000"),
        ("clipping always", "--gradient-clipping 0.125"),
    ])
}
