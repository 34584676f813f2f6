//! The configurations of an engine that are worth running, and what came of them.
//!
//! What an engine offers is data: [`Lattice::of`] has its axes and their values. Their whole product
//! is too large to run, so [`Lattice::covering`] takes those configurations in which every value,
//! and every pair of an unusual shape and an unusual setting, is met at least once.
//! [`Lattice::product`] is the whole product of fewer axes, and [`Lattice::drawn`] draws from all of
//! them by chance. [`group::group`] says the same thing
//! about many configurations once.

mod ddp;
mod deepspeed;
mod draw;
mod fsdp2;
pub mod group;
mod native;
pub mod outcome;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::spec::{Engine, Shape, named_enum};

/// A value of an axis: a few words for people, and what to type behind `zprobe run`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// For people: `stage 1`.
    pub label: String,
    /// The arguments: `--stage 1`; none for what is the default.
    pub arguments: Vec<String>,
}

impl Choice {
    /// A choice of these arguments, separated by spaces.
    fn new(label: &str, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { label: label.to_owned(), arguments }
    }

    fn shape(shape: Shape) -> Self {
        Self::new(shape.name(), &format!("--shape {shape}"))
    }
}

named_enum! {
    /// Why a configuration is in the covering design.
    pub enum Part {
        /// Nothing but the dtypes (and the stage) is chosen.
        Base = "base",
        /// One thing is unusual.
        Factor = "factor",
        /// A shape and a setting are unusual.
        Pair = "pair",
        /// One of the whole product.
        Product = "product",
        /// Drawn by chance.
        Random = "random",
    }
}

/// Something to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The engine.
    pub engine: Engine,
    /// Why it is there.
    pub part: Part,
    /// What it is built on: the stage and the dtypes.
    pub base: Vec<Choice>,
    /// What is unusual beside that.
    pub extra: Vec<Choice>,
}

impl Configuration {
    /// What follows `zprobe run`, apart from where and with which Python.
    pub fn arguments(&self) -> Vec<String> {
        let engine = ["--engine".to_owned(), self.engine.to_string()];
        let choices = self.base.iter().chain(&self.extra);
        engine.into_iter().chain(choices.flat_map(|it| it.arguments.iter().cloned())).collect()
    }

    /// What to type to run it by itself.
    pub fn command(&self) -> String {
        format!("zprobe run {}", self.arguments().join(" "))
    }

    /// The base in words: `stage 1, bf16, grad-accum fp32`.
    pub fn base_label(&self) -> String {
        labels(&self.base, ", ")
    }

    /// The whole in words: `stage 1, bf16, grad-accum fp32, tied × ga 3`.
    pub fn label(&self) -> String {
        match self.extra.as_slice() {
            [] => self.base_label(),
            extra => format!("{}, {}", self.base_label(), labels(extra, " × ")),
        }
    }
}

/// Labels, one after the other.
fn labels(choices: &[Choice], separator: &str) -> String {
    choices.iter().map(|choice| choice.label.as_str()).collect::<Vec<_>>().join(separator)
}

/// What an engine offers.
#[derive(Clone, Debug)]
pub struct Lattice {
    engine: Engine,
    /// Every base: a choice of the stage and the dtypes.
    bases: Vec<Vec<Choice>>,
    /// Bases against which each factor is tried alone.
    factor_bases: Vec<Vec<Choice>>,
    /// Axes with their unusual values. Shapes are one of them.
    factors: Vec<Vec<Choice>>,
    /// Bases against which pairs are tried.
    pair_bases: Vec<Vec<Choice>>,
    /// What each shape is paired with.
    partners: Vec<Choice>,
    /// Shapes of the model.
    shapes: Vec<Choice>,
    /// Axes of the whole product, beside the bases: nothing unusual, or one of these values.
    grid: Vec<Vec<Choice>>,
}

impl Lattice {
    /// What `engine` offers.
    pub fn of(engine: Engine) -> Self {
        match engine {
            Engine::Native => native::lattice(),
            Engine::DeepSpeed => deepspeed::lattice(),
            Engine::Ddp => ddp::lattice(),
            Engine::Fsdp2 => fsdp2::lattice(),
        }
    }

    /// The covering design: every base; every factor alone; every pair of a shape and a setting.
    pub fn covering(&self) -> Vec<Configuration> {
        let bases = self.bases.iter().map(|base| self.configuration(Part::Base, base, vec![]));
        // By value first, so that a sweep that is cut short has tried some values everywhere.
        let factors = self.shapes.iter().chain(self.factors.iter().flatten()).flat_map(|value| {
            let bases = self.factor_bases.iter();
            bases.map(|base| self.configuration(Part::Factor, base, vec![value.clone()]))
        });
        let pairs = self.pair_bases.iter().flat_map(|base| {
            let pairs = self.shapes.iter().flat_map(|shape| {
                self.partners.iter().map(|partner| vec![shape.clone(), partner.clone()])
            });
            pairs.map(|pair| self.configuration(Part::Pair, base, pair))
        });
        distinct(bases.chain(factors).chain(pairs))
    }

    /// The whole product of a smaller grid.
    pub fn product(&self) -> Vec<Configuration> {
        let mut extras = vec![Vec::new()];
        for axis in &self.grid {
            extras = extras
                .into_iter()
                .flat_map(|extra: Vec<Choice>| {
                    let with =
                        |value: &Choice| [extra.as_slice(), std::slice::from_ref(value)].concat();
                    let more: Vec<_> = axis.iter().map(with).collect();
                    [extra].into_iter().chain(more)
                })
                .collect();
        }
        distinct(self.bases.iter().flat_map(|base| {
            extras.iter().map(|extra| self.configuration(Part::Product, base, extra.clone()))
        }))
    }

    fn configuration(&self, part: Part, base: &[Choice], extra: Vec<Choice>) -> Configuration {
        Configuration { engine: self.engine, part, base: base.to_vec(), extra }
    }
}

/// Each configuration once, where it comes first.
fn distinct(all: impl Iterator<Item = Configuration>) -> Vec<Configuration> {
    let mut seen = HashSet::new();
    all.filter(|configuration| seen.insert(configuration.arguments())).collect()
}

/// Choices from labels and arguments.
fn choices(pairs: &[(&str, &str)]) -> Vec<Choice> {
    pairs.iter().map(|(label, arguments)| Choice::new(label, arguments)).collect()
}

/// Every shape but these.
fn shapes_without(others: &[Shape]) -> Vec<Choice> {
    let shapes = Shape::ALL.iter().filter(|shape| !others.contains(shape));
    shapes.map(|shape| Choice::shape(*shape)).collect()
}

/// A norm to which no gradient of the coded model is clipped, and one to which each is.
fn clipping() -> Vec<Choice> {
    choices(&[
        ("clipping never", "--gradient-clipping 1000000000"),
        ("clipping always", "--gradient-clipping 0.125"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_configuration_stands_twice_in_a_design() {
        for &engine in Engine::ALL {
            let lattice = Lattice::of(engine);
            for design in [lattice.covering(), lattice.product()] {
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
        let met = |wanted: &[&Choice]| {
            design.iter().any(|configuration| {
                wanted.iter().all(|choice| configuration.extra.contains(choice))
            })
        };
        for value in lattice.factors.iter().flatten() {
            assert!(met(&[value]), "{}", value.label);
        }
        for shape in &lattice.shapes {
            for partner in &lattice.partners {
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
