//! Remarks on a user's script: facts that the user may want to know, but that are no errors.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::rules::{is_slip, unused_blocks};
use zprobe_model::spec::deepspeed;
use zprobe_model::trace::Aside;
use zprobe_report::words::{abridged, counted};

/// Returns all remarks, one sentence each; empty for runs of an engine without a user's script.
pub fn remarks(case: &Case<'_>) -> Vec<String> {
    if case.observed.spec.script().is_none() {
        return Vec::new();
    }
    let mut all = Vec::new();
    all.extend(reduced_early(case));
    all.extend(clipped_by_value(case));
    all.extend(changed_on_purpose(case));
    all.extend(schedule(case));
    all.extend(partly_used(case));
    all.extend(unused_blocks(case));
    all.extend(set_aside(case));
    all.extend(given_up(case));
    all.extend(unread(case));
    all
}

/// Names the lines of the user's code that call backward and step; `None` if they were not seen.
pub fn places(case: &Case<'_>) -> Option<String> {
    let first = case.observed.script.remarks.values().next()?;
    let said = |what: &str, places: &[String]| match places {
        [] => None,
        places => Some(format!("{what} at {}", places.join(", "))),
    };
    let both = [said("backward", &first.backward_at), said("step", &first.step_at)];
    let said: Vec<String> = both.into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Remarks that gradients are reduced over the ranks in every microbatch.
fn reduced_early(case: &Case<'_>) -> Option<String> {
    let early = case.observed.script.remarks.values().any(|it| it.reduced_early == Some(true));
    let times = case.observed.spec.gradient_accumulation_steps;
    // With wrong weights, the first microbatch may be the only one that is reduced. A backward whose gradients are set
    // aside, as by sharpness-aware minimisation, needs a reduction of its own.
    let is_once_enough = case.deviations.is_empty() && case.observed.script.set_aside.is_empty();
    (early && is_once_enough).then(|| {
        format!(
            "gradients are reduced over the ranks in each of the {times} microbatches of a step, but once per step \
             is enough (no_sync, set_requires_gradient_sync): the result is the same, at {times} times the \
             communication"
        )
    })
}

/// Remarks that a learning-rate schedule steps in each microbatch. Its length may be counted in microbatches.
fn schedule(case: &Case<'_>) -> Option<String> {
    let times = case.observed.spec.gradient_accumulation_steps;
    let is_it = |steps: f64| times > 1 && steps == times as f64;
    case.observed.script.remarks.values().filter_map(|it| it.schedule).any(is_it).then(|| {
        format!(
            "the learning-rate schedule steps {times} times in each optimizer step, once for each \
             microbatch: right if its length is counted in microbatches, otherwise the rate changes {times} times too \
             fast"
        )
    })
}

/// Remarks that gradients are clipped by value, which is excluded from the judgement.
fn clipped_by_value(case: &Case<'_>) -> Option<String> {
    let bound = case.observed.script.remarks.values().find_map(|it| it.clipped_by_value)?;
    Some(format!(
        "the script clips gradients by value, to {bound}: weights are those before the clipping"
    ))
}

/// Remarks that the script changes all gradients on purpose, which is excluded from the judgement.
fn changed_on_purpose(case: &Case<'_>) -> Option<String> {
    let ranks =
        if case.observed.spec.world_size > 1 { ", in the same way on all ranks" } else { "" };
    (!case.observed.buffers.changed.is_empty()).then(|| {
        format!(
            "the script changes the gradients between the last backward and the optimizer's step{ranks}, as noise \
             or gradient centralisation does: weights are those before the change"
        )
    })
}

/// Remarks that the gradients of some microbatches were cleared on purpose.
fn set_aside(case: &Case<'_>) -> Vec<String> {
    let mut by_reason: BTreeMap<Aside, BTreeSet<usize>> = BTreeMap::new();
    for ((_, _, microbatch), why) in &case.observed.script.set_aside {
        by_reason.entry(*why).or_default().insert(*microbatch);
    }
    let said = |(why, microbatches): (Aside, BTreeSet<usize>)| {
        let microbatches: Vec<usize> = microbatches.into_iter().collect();
        let reason = match why {
            Aside::ParametersChanged => {
                "and the parameters changed, as by sharpness-aware minimisation (SAM)"
            }
            Aside::InputGradient => {
                "and only the cleared backward had a gradient of an input, as for an adversarial example or a \
                 saliency map"
            }
        };
        format!(
            "gradients of {} of a step were cleared before the next backward, {reason}: they are not \
             expected in the update",
            counted("microbatch", &microbatches)
        )
    };
    by_reason.into_iter().map(said).collect()
}

/// Remarks on keys of DeepSpeed's configuration that are none of DeepSpeed's. A key that is probably misspelt is a finding
/// of ZP608 instead.
fn unread(case: &Case<'_>) -> Option<String> {
    let unread = case.observed.script.remarks.values().flat_map(|it| &it.unread);
    let keys = unread.filter(|it| it.optimizer.is_none()).flat_map(|it| &it.keys);
    let is_strange =
        |key: &&String| deepspeed::top_level().all(|it| it != *key && !is_slip(key, it));
    let keys: BTreeSet<&String> = keys.filter(is_strange).collect();
    let keys: Vec<String> = keys.into_iter().cloned().collect();
    (!keys.is_empty()).then(|| {
        format!(
            "DeepSpeed ignores keys of its configuration that it does not know: {}",
            abridged(&keys)
        )
    })
}

/// Remarks that the microbatches before some steps were given up.
fn given_up(case: &Case<'_>) -> Option<String> {
    let windows = &case.observed.script.given_up;
    let mut steps: Vec<usize> = windows.keys().map(|(step, _)| *step).collect();
    steps.dedup();
    (!steps.is_empty()).then(|| {
        format!(
            "before {} all gradients that had been accumulated were cleared, and no optimizer stepped (an \
             overflow, or a batch that the script skips): they are not expected in the update",
            counted("step", &steps)
        )
    })
}

/// Remarks that some ranks have a gradient of a parameter in a microbatch in which others have none.
fn partly_used(case: &Case<'_>) -> Option<String> {
    let observed = &case.observed;
    let mut having: BTreeMap<(usize, usize), BTreeMap<usize, BTreeSet<usize>>> = BTreeMap::new();
    let mut present: BTreeMap<(usize, usize), BTreeSet<usize>> = BTreeMap::new();
    for (at, backward) in observed.hooks.backwards.iter().filter(|(_, it)| it.is_known()) {
        present.entry((at.step, at.microbatch)).or_default().insert(at.rank);
        let of_it = having.entry((at.step, at.microbatch)).or_default();
        for param in backward.delivered() {
            of_it.entry(param).or_default().insert(at.rank);
        }
    }
    let (mut params, mut without) = (BTreeSet::new(), BTreeSet::new());
    for (moment, of_it) in &having {
        for (param, ranks) in of_it {
            let lacking = present[moment].difference(ranks).copied();
            let lacking: Vec<usize> =
                lacking.filter(|rank| observed.model.has(*rank, *param)).collect();
            if !lacking.is_empty() {
                params.insert(*param);
                without.extend(lacking);
            }
        }
    }
    let names: Vec<String> = params.into_iter().map(|it| observed.model.param_name(it)).collect();
    let without: Vec<usize> = without.into_iter().collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} had no gradient of {} in microbatches in which other ranks had one",
            counted("rank", &without),
            abridged(&names),
        )
    })
}
