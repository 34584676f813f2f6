//! The configurations of an engine that are worth running, and their outcomes.
//!
//! The axes of an engine and their values are data of [`zprobe_engines`]. Their Cartesian product is too large to run, so
//! [`Lattice::covering`] selects configurations in which every value, and every pair of an unusual shape and an
//! unusual setting, occurs at least once. [`Lattice::pairwise`] is a much smaller design with all pairs of values,
//! and [`Lattice::drawn`] draws from all axes at random. [`group::group`] joins the configurations that have the same
//! outcome.

mod draw;
pub mod group;
pub mod outcome;
mod pairwise;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use zprobe_engines::{self as engines, Axes};
use zprobe_model::spec::{Engine, named_enum};

pub use zprobe_engines::AxisChoice;

named_enum! {
    /// The part of the design that a configuration belongs to.
    pub enum DesignPart {
        /// A base alone: only the dtypes and, for ZeRO, the stage are chosen.
        Base = "base",
        /// A base with a single unusual shape or setting.
        Factor = "factor",
        /// A base with an unusual shape and an unusual setting.
        Pair = "pair",
        /// A configuration that is drawn at random.
        Random = "random",
        /// A configuration of the design in which every pair of unusual values occurs.
        Pairwise = "pairwise",
    }
}

/// A configuration of an engine that can be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The engine to run.
    pub engine: Engine,
    /// The part of the design that the configuration belongs to.
    pub part: DesignPart,
    /// The choices of the base: the stage and the dtypes.
    pub base: Vec<AxisChoice>,
    /// The unusual choices that are added to the base.
    pub extra: Vec<AxisChoice>,
}

impl Configuration {
    /// The arguments of `zprobe run`, except for the run directory and the Python interpreter.
    pub fn arguments(&self) -> Vec<String> {
        let engine = ["--engine".to_owned(), self.engine.to_string()];
        let choices = self.base.iter().chain(&self.extra);
        engine.into_iter().chain(choices.flat_map(|it| it.arguments.iter().cloned())).collect()
    }

    /// The command line that runs only this configuration.
    pub fn command(&self) -> String {
        self.command_with(&[])
    }

    /// The command line that runs the configuration with further arguments.
    pub fn command_with(&self, further: &[String]) -> String {
        let arguments = self.arguments();
        let words = arguments.iter().chain(further).map(String::as_str);
        // Quoting fails only for a word with a zero byte, which no command line can contain.
        shlex::try_join(["zprobe", "run"].into_iter().chain(words)).unwrap_or_default()
    }

    /// The label of the base, such as `stage 1, bf16, grad-accum fp32`.
    pub fn base_label(&self) -> String {
        labels(&self.base, ", ")
    }

    /// The label of the whole configuration, such as `stage 1, bf16, grad-accum fp32, tied × ga 3`.
    pub fn label(&self) -> String {
        match self.extra.as_slice() {
            [] => self.base_label(),
            extra => format!("{}, {}", self.base_label(), labels(extra, " × ")),
        }
    }
}

/// The labels of the choices, joined with `separator`.
fn labels(choices: &[AxisChoice], separator: &str) -> String {
    choices.iter().map(|choice| choice.label.as_str()).collect::<Vec<_>>().join(separator)
}

/// The configurations that can be made from the axes of an engine.
#[derive(Clone, Debug)]
pub struct Lattice {
    engine: Engine,
    axes: Axes,
}

impl Lattice {
    /// The lattice of `engine`.
    pub fn of(engine: Engine) -> Self {
        Self { engine, axes: (engines::of(engine).axes)() }
    }

    /// The covering design: every base, every factor by itself, and every pair of a shape and a setting.
    pub fn covering(&self) -> Vec<Configuration> {
        let bases =
            self.axes.bases.iter().map(|base| self.configuration(DesignPart::Base, base, vec![]));
        // Sorted by value first, so that an interrupted sweep has tried some values on every base.
        let factors =
            self.axes.shapes.iter().chain(self.axes.factors.iter().flatten()).flat_map(|value| {
                let bases = self.axes.factor_bases.iter();
                bases.map(|base| self.configuration(DesignPart::Factor, base, vec![value.clone()]))
            });
        let pairs = self.axes.pair_bases.iter().flat_map(|base| {
            let pairs = self.axes.shapes.iter().flat_map(|shape| {
                self.axes.partners.iter().map(|partner| vec![shape.clone(), partner.clone()])
            });
            pairs.map(|pair| self.configuration(DesignPart::Pair, base, pair))
        });
        distinct(bases.chain(factors).chain(pairs))
    }

    fn configuration(
        &self,
        part: DesignPart,
        base: &[AxisChoice],
        extra: Vec<AxisChoice>,
    ) -> Configuration {
        Configuration { engine: self.engine, part, base: base.to_vec(), extra }
    }
}

/// The configurations without duplicates, in the order of their first occurrence.
fn distinct(all: impl Iterator<Item = Configuration>) -> Vec<Configuration> {
    let mut seen = HashSet::new();
    all.filter(|configuration| seen.insert(configuration.arguments())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_configuration_stands_twice_in_a_design() {
        for &engine in Engine::CHOICES {
            let lattice = Lattice::of(engine);
            for design in [lattice.covering(), lattice.pairwise(&|_| true)] {
                let arguments: HashSet<_> = design.iter().map(Configuration::arguments).collect();
                let labels: HashSet<_> = design.iter().map(Configuration::label).collect();
                assert_eq!((arguments.len(), labels.len()), (design.len(), design.len()));
                assert!(!design.is_empty(), "{engine}");
            }
        }
    }

    #[test]
    fn every_value_and_every_pair_is_met() {
        let lattice = Lattice::of(Engine::DeepSpeed);
        let design = lattice.covering();
        let met = |wanted: &[&AxisChoice]| {
            design.iter().any(|configuration| {
                wanted.iter().all(|choice| configuration.extra.contains(choice))
            })
        };
        for value in lattice.axes.factors.iter().flatten() {
            assert!(met(&[value]), "{}", value.label);
        }
        for shape in &lattice.axes.shapes {
            for partner in &lattice.axes.partners {
                assert!(met(&[shape, partner]), "{} × {}", shape.label, partner.label);
            }
        }
    }

    #[test]
    fn a_configuration_says_what_to_type() {
        let design = Lattice::of(Engine::DeepSpeed).covering();
        let label = "stage 1, fp16, grad-accum fp32";
        let base = design.iter().find(|it| it.label() == label).expect("a base");
        assert_eq!(
            base.arguments().join(" "),
            "--engine deepspeed --stage 1 --dtype fp16 --grad-accum-dtype fp32"
        );
    }
}
