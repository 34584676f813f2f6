//! Old gradients of a script's first step in the optimizers' inputs of the next step. These gradients have no codes, so
//! the rank has taken them out of the input.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::Reading;
use super::coded::{Decoder, Prepared};
use super::weights::{ColumnWeights, KnownWeights};
use crate::placement::Fragment;
use zprobe_model::trace::Point;

/// Adds the weights of the old gradients to those that were read from the rest of an optimizer's input.
pub(super) fn with_first_step(
    decoder: &Decoder<'_>,
    ready: &Prepared<'_>,
    readings: Vec<Reading>,
) -> Vec<Reading> {
    let Prepared { buffer, pieces, .. } = ready;
    let observed = decoder.scene.observed;
    let step = buffer.step.filter(|step| *step == 1 && buffer.point == Point::OptimizerInput);
    let left = step.and_then(|step| observed.updates.left.get(&(step, buffer.rank)));
    let Some(left) = left else { return readings };
    let weight = |param| left.iter().find(|it| it.param == param).map_or(0.0, |it| it.weight);
    let name = |param: usize| observed.model.param_name(param);
    let split = |reading: Reading| {
        let is_of = |piece: &&Fragment| match &reading.params {
            Some(params) => params.contains(&name(piece.param)),
            None => decoder.kind(piece).is_none(),
        };
        let mut by_weight: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for param in pieces.iter().filter(is_of).map(|piece| piece.param) {
            by_weight.entry(weight(param).to_bits()).or_default().insert(name(param));
        }
        let old = decoder.expectations.of(KnownWeights::Left, buffer, reading.usage);
        let is_whole = by_weight.len() == 1;
        let part = |(bits, params): (u64, BTreeSet<String>)| {
            let mut part = reading.clone();
            part.elements.retain(|it| params.contains(&it.param));
            if !is_whole {
                part.params = Some(params.into_iter().collect());
            }
            match (&old, f64::from_bits(bits)) {
                (Some(old), weight) if weight != 0.0 => part.plus(old, weight),
                _ => part,
            }
        };
        by_weight.into_iter().map(part).collect::<Vec<_>>()
    };
    readings.into_iter().flat_map(split).collect()
}

impl Reading {
    /// Adds a multiple of other weights to the weights of this reading.
    fn plus(self, other: &ColumnWeights, times: f64) -> Self {
        let add = |own: &Rc<ColumnWeights>| {
            let pairs = own.columns.iter().zip(&other.columns);
            ColumnWeights::new(pairs.map(|(own, other)| own + times * other).collect())
        };
        let (weights, possible) = (add(&self.weights), self.possible.iter().map(add).collect());
        Self { weights, possible, is_plain: false, slip: None, ..self }
    }
}
