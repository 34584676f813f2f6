//! A small design in which every pair of unusual values occurs.
//!
//! Most faults of software need one value or two ("Software Fault Interactions and Implications for Software Testing",
//! Kuhn, Wallace and Gallo, 2004), so that a design with all pairs finds most of them in few runs. The design is made
//! by the greedy method of AETG ("The AETG System", Cohen, Dalal, Fredman and Patton, 1997): of several trials, the
//! configuration with the most new pairs is chosen.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{AxisChoice, Configuration, DesignPart, Lattice};

/// The largest number of unusual values in a configuration. With more values the design is smaller, but the failure of
/// a configuration says less.
const MOST_VALUES: usize = 16;

/// The number of trials for each configuration of the design.
const TRIALS: usize = 12;

/// The shapes that are left out, because the optimizer then gets no gradients or skips the step, which hides the
/// effects of all other values.
const HIDING: [&str; 3] = ["infinity-on-one-rank", "unmanaged", "late-no-sync"];

/// The argument that is left out, because its runs take minutes: each configuration would be compiled.
const SLOW: &str = "inductor";

/// An unusual value, and the number of its axis. A configuration has at most one value of an axis.
struct Value {
    axis: usize,
    choice: AxisChoice,
}

/// The numbers of two values, the lower one first.
type Pair = (usize, usize);

/// The search for the configurations of bases that share an optimizer.
struct Search<'a> {
    lattice: &'a Lattice,
    bases: Vec<&'a [AxisChoice]>,
    values: &'a [Value],
    accepts: &'a dyn Fn(&Configuration) -> bool,
    /// The pairs that no configuration has yet.
    open: BTreeSet<Pair>,
    chance: fastrand::Rng,
}

impl Lattice {
    /// Configurations in which each pair of unusual values occurs; for DeepSpeed, in stage 0, in stage 1 or 2, and in
    /// stage 3. Pairs of which `accepts` refuses every configuration are left out. The design is always the same.
    pub fn pairwise(&self, accepts: &dyn Fn(&Configuration) -> bool) -> Vec<Configuration> {
        let values = self.values();
        let mut groups: Vec<(Option<&str>, Vec<&[AxisChoice]>)> = Vec::new();
        for base in &self.axes.bases {
            let optimizer = optimizer(base);
            match groups.iter_mut().find(|(known, _)| *known == optimizer) {
                Some((_, bases)) => bases.push(base),
                None => groups.push((optimizer, vec![base])),
            }
        }
        let searches = groups.into_iter().map(|(_, bases)| Search {
            lattice: self,
            bases,
            values: &values,
            accepts,
            open: pairs_of_axes(&values),
            chance: fastrand::Rng::with_seed(0),
        });
        searches.flat_map(Search::run).collect()
    }

    /// All unusual values. Each shape has an axis of its own, because shapes can be combined.
    fn values(&self) -> Vec<Value> {
        let shapes = self.axes.shapes.iter().filter(|it| !HIDING.contains(&it.label.as_str()));
        let shapes = shapes.map(|shape| vec![shape.clone()]);
        let dense = vec![AxisChoice::new("mlp", "--model mlp")];
        let axes = self.axes.factors.iter().cloned().chain(shapes).chain([dense]);
        let values = axes.enumerate().flat_map(|(axis, choices)| {
            choices.into_iter().map(move |choice| Value { axis, choice })
        });
        values.filter(|value| !value.choice.arguments.iter().any(|word| word == SLOW)).collect()
    }
}

impl Search<'_> {
    fn run(mut self) -> Vec<Configuration> {
        let mut design = Vec::new();
        while !self.open.is_empty() {
            let trials: Vec<_> = (0..TRIALS).filter_map(|_| self.trial()).collect();
            let Some(best) = trials.into_iter().max_by_key(|(values, _)| self.news(values)) else {
                self.forget_impossible();
                continue;
            };
            let (values, configuration) = best;
            self.open.retain(|(one, other)| !(values.contains(one) && values.contains(other)));
            design.push(configuration);
        }
        design
    }

    /// A configuration with a random open pair, to which values are added as long as they add open pairs. `None` if the
    /// pair is refused with a random base.
    fn trial(&mut self) -> Option<(Vec<usize>, Configuration)> {
        let place = self.chance.usize(..self.open.len());
        let (one, other) = *self.open.iter().nth(place)?;
        let base = self.bases[self.chance.usize(..self.bases.len())];
        let mut chosen = vec![one, other];
        let mut configuration = self.accepted(base, &chosen)?;
        let mut others: Vec<usize> = (0..self.values.len()).collect();
        self.chance.shuffle(&mut others);
        while chosen.len() < MOST_VALUES {
            others.retain(|next| self.adds(&chosen, *next) > 0);
            others.sort_by_key(|next| Reverse(self.adds(&chosen, *next)));
            let next = others.iter().find_map(|next| {
                let more = [chosen.as_slice(), &[*next]].concat();
                self.accepted(base, &more).map(|it| (more, it))
            });
            let Some(more) = next else { break };
            (chosen, configuration) = more;
        }
        Some((chosen, configuration))
    }

    /// The number of open pairs that a value adds to a configuration with the values `chosen`; 0 for a value of an axis
    /// that the configuration has a value of.
    fn adds(&self, chosen: &[usize], next: usize) -> usize {
        let axis = self.values[next].axis;
        if chosen.iter().any(|it| self.values[*it].axis == axis) {
            return 0;
        }
        let pairs = chosen.iter().map(|it| ((*it).min(next), (*it).max(next)));
        pairs.filter(|pair| self.open.contains(pair)).count()
    }

    /// The number of open pairs among the values.
    fn news(&self, values: &[usize]) -> usize {
        self.open
            .iter()
            .filter(|(one, other)| values.contains(one) && values.contains(other))
            .count()
    }

    /// The configuration with these values, in the order of the axes; `None` if it is refused.
    fn accepted(&self, base: &[AxisChoice], values: &[usize]) -> Option<Configuration> {
        let mut values = values.to_vec();
        values.sort_unstable();
        let extra = values.iter().map(|it| self.values[*it].choice.clone()).collect();
        let configuration = self.lattice.configuration(DesignPart::Pairwise, base, extra);
        (has_distinct_flags(&configuration) && (self.accepts)(&configuration))
            .then_some(configuration)
    }

    /// Removes the open pairs that are refused with all bases.
    fn forget_impossible(&mut self) {
        let is_possible = |(one, other): &Pair| {
            self.bases.iter().any(|base| self.accepted(base, &[*one, *other]).is_some())
        };
        self.open = self.open.iter().copied().filter(is_possible).collect();
    }
}

/// The pairs of values of different axes.
fn pairs_of_axes(values: &[Value]) -> BTreeSet<Pair> {
    let pairs = (0..values.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
    pairs.filter(|(one, other)| values[*one].axis != values[*other].axis).collect()
}

/// The ZeRO stage of a base, with 1 also for stage 2, which has the same optimizer; `None` for other engines.
fn optimizer(base: &[AxisChoice]) -> Option<&str> {
    let stage =
        base.iter().find(|it| it.arguments.first().is_some_and(|flag| flag == "--stage"))?;
    let stage = stage.arguments.last()?;
    Some(if stage == "2" { "1" } else { stage })
}

/// True if no flag occurs twice, except for flags that may be repeated.
fn has_distinct_flags(configuration: &Configuration) -> bool {
    let choices = configuration.base.iter().chain(&configuration.extra);
    let flags = choices.flat_map(|it| &it.arguments).filter(|word| word.starts_with("--"));
    let mut seen = BTreeSet::new();
    let mut once = flags.filter(|word| !["--shape", "--deepspeed-set"].contains(&word.as_str()));
    once.all(|word| seen.insert(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::Engine;

    /// Refuses each configuration that has both of the values.
    fn without(pair: [&'static str; 2]) -> impl Fn(&Configuration) -> bool {
        move |it| !pair.iter().all(|label| it.extra.iter().any(|choice| choice.label == *label))
    }

    #[test]
    fn every_pair_occurs_in_every_optimizer_except_a_refused_one() {
        let lattice = Lattice::of(Engine::DeepSpeed);
        let design = lattice.pairwise(&without(["offload", "tied"]));
        let values = lattice.values();
        for stages in [&["0"][..], &["1", "2"], &["3"]] {
            let of_stage = |it: &&Configuration| {
                stages.iter().any(|stage| it.base_label().starts_with(&format!("stage {stage}")))
            };
            let design: Vec<_> = design.iter().filter(of_stage).collect();
            for (one, other) in pairs_of_axes(&values) {
                let pair = [&values[one].choice, &values[other].choice];
                let occurs =
                    design.iter().any(|it| pair.iter().all(|choice| it.extra.contains(choice)));
                let refused = ["offload", "tied"]
                    .iter()
                    .all(|label| pair.iter().any(|it| it.label == *label));
                let both = pair[0].arguments.iter().filter(|it| it.starts_with("--"));
                let clash = both.clone().any(|flag| {
                    !["--shape", "--deepspeed-set"].contains(&flag.as_str())
                        && pair[1].arguments.contains(flag)
                });
                assert_eq!(occurs, !refused && !clash, "{} × {}", pair[0].label, pair[1].label);
            }
        }
    }

    #[test]
    fn the_design_is_small_and_always_the_same() {
        let lattice = Lattice::of(Engine::Fsdp2);
        let design = lattice.pairwise(&|_| true);
        assert_eq!(design, lattice.pairwise(&|_| true));
        assert!(design.iter().all(|it| it.extra.len() <= MOST_VALUES));
        assert!(4 * design.len() < lattice.covering().len(), "{} configurations", design.len());
    }
}
