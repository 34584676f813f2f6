//! Configurations that are drawn at random from the axes of an engine.

use super::{AxisChoice, Configuration, DesignPart, Lattice};

/// The numbers of ranks, and below of microbatches per step, to draw from; many are not powers of two.
const WORLD_SIZES: &[usize] = &[1, 2, 2, 3, 3, 4, 5, 6];
const MICROBATCHES: &[usize] = &[1, 1, 2, 3, 3, 4, 5, 6, 7, 9];

/// The number of different seeds of the data to draw from.
const SEEDS: u64 = 1_000_000;

impl Lattice {
    /// An endless sequence of configurations, the same for the same `seed`. Each has a base, numbers of ranks and
    /// of microbatches, a seed of the data, and from each axis either no value or one unusual value. zprobe refuses
    /// some of these configurations, and some occur more than once.
    pub fn drawn(self, seed: u64) -> impl Iterator<Item = Configuration> {
        let mut chance = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(move || self.draw(&mut chance))
    }

    fn draw(&self, chance: &mut fastrand::Rng) -> Configuration {
        let base = self.axes.bases[chance.usize(..self.axes.bases.len())].clone();
        let mut extra = vec![
            count("ranks", "--nproc-per-node", WORLD_SIZES[chance.usize(..WORLD_SIZES.len())]),
            count("microbatches", "--ga", MICROBATCHES[chance.usize(..MICROBATCHES.len())]),
        ];
        let dense = chance.u8(..5) == 0;
        if dense {
            extra.push(AxisChoice::new("mlp", "--model mlp"));
        } else {
            // Half of the models have no shape; some have two.
            let shapes = [0, 0, 0, 1, 1, 2][chance.usize(..6)];
            for _ in 0..shapes {
                let shape = &self.axes.shapes[chance.usize(..self.axes.shapes.len())];
                if !extra.contains(shape) {
                    extra.push(shape.clone());
                }
            }
        }
        for axis in &self.axes.factors {
            let value = &axis[chance.usize(..axis.len())];
            let has = |flag| base.iter().chain(&extra).any(|it| it.arguments.first() == Some(flag));
            if chance.u8(..4) == 0 && value.arguments.first().is_some_and(|flag| !has(flag)) {
                extra.push(value.clone());
            }
        }
        let data = chance.u64(..SEEDS);
        extra.push(AxisChoice::new(&format!("seed {data}"), &format!("--seed {data}")));
        Configuration { engine: self.engine, part: DesignPart::Random, base, extra }
    }
}

fn count(what: &str, flag: &str, number: usize) -> AxisChoice {
    AxisChoice::new(&format!("{number} {what}"), &format!("{flag} {number}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use zprobe_model::spec::Engine;

    #[test]
    fn a_seed_draws_the_same_again_and_another_one_something_else() {
        for &engine in Engine::CHOICES {
            let drawn = |seed| -> Vec<_> { Lattice::of(engine).drawn(seed).take(50).collect() };
            assert_eq!(drawn(1), drawn(1));
            assert_ne!(drawn(1), drawn(2));
        }
    }

    #[test]
    fn no_flag_of_one_value_stands_twice_and_every_value_of_every_axis_comes() {
        for &engine in Engine::CHOICES {
            let lattice = Lattice::of(engine);
            let drawn: Vec<_> = lattice.clone().drawn(7).take(2000).collect();
            for configuration in &drawn {
                let arguments = configuration.arguments();
                let flags: Vec<_> = arguments
                    .iter()
                    .filter(|word| word.starts_with("--"))
                    .filter(|word| *word != "--shape" && *word != "--deepspeed-set")
                    .collect();
                let distinct: HashSet<_> = flags.iter().collect();
                assert_eq!(distinct.len(), flags.len(), "{arguments:?}");
            }
            let counts = |it: &AxisChoice| {
                it.arguments.iter().any(|word| word == "--ga" || word == "--nproc-per-node")
            };
            for value in lattice.axes.shapes.iter().chain(lattice.axes.factors.iter().flatten()) {
                let comes = drawn.iter().any(|it| it.extra.contains(value));
                assert!(comes || counts(value), "{engine}: {}", value.label);
            }
        }
    }
}
