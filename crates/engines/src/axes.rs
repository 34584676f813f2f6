//! The values of an engine's settings that are worth trying.

use serde::{Deserialize, Serialize};

use zprobe_model::spec::{Engine, Shape};

/// One value of a setting: a label for people, and the arguments of `zprobe run` that select the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AxisChoice {
    /// A label for people, such as `stage 1`.
    pub label: String,
    /// The arguments of `zprobe run`, such as `--stage 1`; empty for the default.
    pub arguments: Vec<String>,
}

impl AxisChoice {
    /// Creates a choice from a label and arguments, which are separated by spaces.
    pub fn new(label: &str, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { label: label.to_owned(), arguments }
    }

    fn shape(shape: Shape) -> Self {
        Self::new(shape.name(), &format!("--shape {shape}"))
    }
}

/// The values of an engine's settings that are worth trying, grouped by axis.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// All bases. A base is a combination of settings, such as a stage and dtypes, to which other settings are added.
    pub bases: Vec<Vec<AxisChoice>>,
    /// The bases with which each value of `factors` and each shape is tried as the only unusual value.
    pub factor_bases: Vec<Vec<AxisChoice>>,
    /// The axes, one for each setting, with the unusual values of the setting. The shapes are in [`Axes::shapes`].
    pub factors: Vec<Vec<AxisChoice>>,
    /// The bases with which all pairs of a shape and a value of `partners` are tried.
    pub pair_bases: Vec<Vec<AxisChoice>>,
    /// The unusual values of settings that are paired with each shape.
    pub partners: Vec<AxisChoice>,
    /// The shapes that are worth trying with the engine.
    pub shapes: Vec<AxisChoice>,
}

/// Makes choices from pairs of a label and arguments, which are separated by spaces.
pub(super) fn choices(pairs: &[(&str, &str)]) -> Vec<AxisChoice> {
    pairs.iter().map(|(label, arguments)| AxisChoice::new(label, arguments)).collect()
}

/// A choice for each shape that the engine can have, except `others`.
pub(super) fn shapes_of(engine: Engine, others: &[Shape]) -> Vec<AxisChoice> {
    let is_chosen =
        |it: &&Shape| it.only_on().is_none_or(|(only, _)| only == engine) && !others.contains(it);
    Shape::ALL.iter().filter(is_chosen).map(|it| AxisChoice::shape(*it)).collect()
}

/// The axes that every engine has, for an engine without settings of its own.
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
        shapes: shapes_of(Engine::ZeroRedundancy, &[]),
    }
}

/// Two clipping norms: one that no gradient of the coded model exceeds, and one that every gradient exceeds.
pub(super) fn clipping() -> Vec<AxisChoice> {
    choices(&[
        ("clipping never", "--gradient-clipping 1000000000"),
        ("clipping always", "--gradient-clipping 0.125"),
    ])
}
