//! ZP602: after the step a model's parameters differ from their owner's master weights, or forward or backward uses
//! other parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::case::Case;
use crate::infinity::parts;
use crate::observed::Buffer;
use crate::placement::Fragment;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::spec::Dtype;
use zprobe_model::spec::plan::Param;
use zprobe_model::trace::{Differing, LayoutName, Point};
use zprobe_report::RuleCode;
use zprobe_report::words::{abridged, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP602"),
    name: "stale-parameters",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP401", "ZP501", "ZP502", "ZP605", "ZP611", "ZP802"]),
    doc: include_str!("../../docs/ZP602.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    // A later step inherits stale parameters, and adds no information.
    let after_step = case.observed.spec.recorded_steps().find_map(|step| in_step(case, rule, step));
    let updates = &case.observed.updates;
    after_step
        .or_else(|| in_use(case, rule, "forward", &updates.forward))
        .or_else(|| in_use(case, rule, "backward", &updates.backward))
        .into_iter()
        .collect()
}

/// Reports the first forward or backward (`pass`) that used other parameters than the previous step left.
fn in_use(
    case: &Case<'_>,
    rule: &Rule,
    pass: &str,
    used: &BTreeMap<(usize, usize, usize), &[Differing]>,
) -> Option<Sighting> {
    let mut wrong = used.iter().filter(|(_, differing)| !differing.is_empty());
    let (&(step, microbatch, first_rank), &differing) = wrong.next()?;
    let in_same = wrong.take_while(|((s, m, _), _)| (*s, *m) == (step, microbatch));
    let mut of_ranks = vec![(first_rank, differing)];
    of_ranks.extend(in_same.map(|((_, _, rank), differing)| (*rank, *differing)));
    let ranks: Vec<usize> = of_ranks.iter().map(|(rank, _)| *rank).collect();
    let mut finding = rule.finding(format!(
        "the {pass} of step {step}, microbatch {microbatch}, on {} used other parameters than {}",
        counted("rank", &ranks),
        match step.checked_sub(1) {
            Some(before) => format!("those after step {before}"),
            None if case.observed.spec.script().is_some() => {
                "those of the optimizers, which are older copies".to_owned()
            }
            None => "those at the start of the run".to_owned(),
        },
    ));
    finding.microbatch = Some(microbatch);
    if let [rank] = ranks[..] {
        finding.rank = Some(rank);
    }
    let params: BTreeSet<usize> =
        of_ranks.iter().flat_map(|(_, differing)| differing.iter().map(|it| it.param)).collect();
    let of_rank = |&(rank, differing): &(usize, &[Differing])| {
        let elements = differing.iter().map(|it| {
            let name = case.observed.model.param_name(it.param);
            format!("{name} from element {} on ({} elements)", it.first, it.elements)
        });
        format!("rank {rank}: {}", abridged(&elements.collect::<Vec<_>>()))
    };
    finding.evidence.extend(of_ranks.iter().map(of_rank));
    let params = params.into_iter().collect();
    Some(Sighting::new(finding, Scope { params, ..Scope::step(step) }))
}

fn in_step(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Sighting> {
    let updated = UpdatedWeights::new(case, step);
    let models =
        case.observed.buffers.at(Point::Parameters, step).filter(|b| b.layout == LayoutName::Full);
    let (mut readers, mut owners) = (BTreeSet::new(), BTreeSet::new());
    let mut params = BTreeSet::new();
    for parameters in models {
        for (owner, param) in updated.lost_by(case, parameters) {
            readers.insert(parameters.rank);
            owners.insert(owner);
            params.insert(param);
        }
    }
    if owners.is_empty() {
        return None;
    }
    let (readers, owners): (Vec<usize>, Vec<usize>) =
        (readers.into_iter().collect(), owners.into_iter().collect());
    let mut finding = rule.finding(format!(
        "after step {step} the model on {} does not hold the weights that {} updated",
        counted("rank", &readers),
        counted("rank", &owners),
    ));
    finding.rank = match (&readers[..], &owners[..]) {
        // If only one reader is stale, that rank lost the update. If one owner's partition is stale on several ranks,
        // that owner did not send its update.
        ([reader], _) => Some(*reader),
        (_, [owner]) => Some(*owner),
        _ => None,
    };
    let name = |&param: &usize| case.plan.params()[param].name.clone();
    let names: Vec<String> = params.iter().map(name).collect();
    finding.evidence.push(format!("parameters: {}", abridged(&names)));
    finding.evidence.push(
        "compared bit for bit with the master weights, rounded to the model's dtype".to_owned(),
    );
    let params = params.into_iter().collect();
    Some(Sighting::new(finding, Scope { params, ..Scope::step(step) }))
}

/// The master weights of all owners after a step.
struct UpdatedWeights {
    owners: Vec<(usize, Vec<f64>)>,
    /// The pieces of these weights, sorted by start, each with the index of its owner.
    pieces: Vec<(Fragment, usize)>,
    /// The furthest end of the pieces up to each index.
    ends: Vec<usize>,
}

impl UpdatedWeights {
    fn new(case: &Case<'_>, step: usize) -> Self {
        let (mut owners, mut pieces) = (Vec::new(), Vec::new());
        for master in case.observed.buffers.at(Point::MasterWeights, step) {
            let Ok(values) = master.payload.values() else { continue };
            let held = parts(&case.observed, &case.plan, master);
            pieces.extend(held.into_iter().map(|piece| (piece, owners.len())));
            owners.push((master.rank, values));
        }
        pieces.sort_by_key(|(piece, _): &(Fragment, usize)| piece.flat.start);
        let ends = pieces.iter().scan(0, |end: &mut usize, (piece, _)| {
            *end = piece.flat.end.max(*end);
            Some(*end)
        });
        let ends = ends.collect();
        Self { owners, pieces, ends }
    }

    /// Returns the owners and parameters whose update this rank's model does not hold.
    ///
    /// Elements that the rank updates itself are not compared with the weights of other ranks, and a replica of the
    /// model is not compared with another replica; ZP601 compares these.
    fn lost_by(&self, case: &Case<'_>, parameters: &Buffer<'_>) -> BTreeSet<(usize, usize)> {
        let mut lost = BTreeSet::new();
        let Ok(values) = parameters.payload.values() else { return lost };
        let own = case.placement.partition(parameters.rank).unwrap_or_default();
        let sampled = case.placement.recorded_share(parameters.rank, LayoutName::Full) < 1.0;
        let held = parts(&case.observed, &case.plan, parameters);
        if !sampled {
            // An element that the rank does not hold at all lacks its update.
            let known: usize = held.iter().map(|part| part.flat.len()).sum();
            let missing = |piece: &Fragment| {
                let inside =
                    |part: &Fragment| overlap(&part.flat, &piece.flat).map_or(0, |o| o.len());
                held.iter().map(inside).sum::<usize>() < piece.flat.len()
            };
            let params = case.plan.params();
            let here = |piece: &Fragment| params[piece.param].is_on(parameters.rank);
            let due = params.iter().filter(|param| param.is_on(parameters.rank)).map(Param::numel);
            if known < due.sum() {
                let gone = self.pieces.iter().filter(|(piece, _)| here(piece) && missing(piece));
                lost.extend(gone.map(|(piece, owner)| (self.owners[*owner].0, piece.param)));
            }
        }
        for part in &held {
            let first = self.ends.partition_point(|end| *end <= part.flat.start);
            for (piece, owner) in &self.pieces[first..] {
                if piece.flat.start >= part.flat.end {
                    break;
                }
                let Some(common) = overlap(&part.flat, &piece.flat) else { continue };
                let (rank, weights) = &self.owners[*owner];
                let spec = case.observed.spec;
                if spec.replica(*rank) != spec.replica(parameters.rank) {
                    continue;
                }
                let is_own = |element: usize| {
                    parameters.rank != *rank
                        && own.iter().any(|fragment| fragment.flat.contains(&element))
                };
                let differs = |element: usize| {
                    let weight = weights[piece.start + element - piece.flat.start];
                    let rounded = round(weight, parameters.payload.dtype);
                    let value = values[part.start + element - part.flat.start];
                    // Two NaNs count as equal whatever their bits, because rounding does not keep the bits.
                    value.to_bits() != rounded.to_bits() && !(value.is_nan() && rounded.is_nan())
                };
                if common.into_iter().any(|element| differs(element) && !is_own(element)) {
                    lost.insert((*rank, piece.param));
                }
            }
        }
        lost
    }
}

/// Returns the elements that are in both ranges.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

/// Rounds a master weight, which is an fp32 number, to the model's dtype.
fn round(value: f64, dtype: Dtype) -> f64 {
    // The conversion starts from fp32, because `from_f64` drops the bits below its first 20 before it rounds, ties
    // included.
    let value = value as f32;
    match dtype {
        Dtype::Bf16 => half::bf16::from_f32(value).to_f64(),
        Dtype::Fp16 => half::f16::from_f32(value).to_f64(),
        Dtype::Fp32 => f64::from(value),
    }
}
