//! The power of a run, and the parts of training that it did not exercise.

use crate::case::Case;
use crate::loss::{self, law, scale};
use crate::observed::{Buffer, RankProcess};
use crate::overflow;
use zprobe_model::spec::{Dataflow, MOST_STEPS, Model, Optimizer, Plan, Shape};
use zprobe_model::trace::{Event, FlushReason, Point, UNSET_MEMORY};
use zprobe_report::words::{abridged, by_rank, counted, two_digits};
use zprobe_report::{Finding, Method, Power};

/// Returns the smallest deviation that this run could have detected.
pub fn power(case: &Case<'_>) -> Power {
    let (spec, decoded) = (case.observed.spec, &case.decoded);
    let contributions = spec.contributions_per_step();
    let method = match spec.model {
        Model::Coded => Method::Coded,
        Model::Mlp => Method::LeastSquares,
    };
    let looked_at =
        if case.placement.smallest_share().is_some() { " that was looked at" } else { "" };
    let statement = match (method, decoded.smallest_weight_deviation) {
        (_, None) => "no weight could be read at the optimizer's input: no conclusion".to_owned(),
        (Method::Coded, Some(0.0)) => format!(
            "one wrong bit in any gradient element{looked_at}; losing 1 of {contributions} contributions \
             would change every element by 1"
        ),
        (Method::Coded, Some(deviation)) => format!(
            "one contribution of {contributions} changed by {deviation:.1e} in one element{looked_at}"
        ),
        (Method::LeastSquares, Some(deviation)) => format!(
            "a weight that is off by {deviation:.1e} (losing 1 of {contributions} contributions would \
             change a weight by 1)"
        ),
    };
    Power {
        method,
        smallest_weight_deviation: decoded.smallest_weight_deviation,
        condition: decoded.condition,
        smallest_element_deviation: decoded.smallest_element_deviation,
        statement,
    }
}

/// Describes the pieces that were too short to be decoded by themselves, at the last point that shows the weights
/// ([`zprobe_model::spec::RunSpec::last_word`]); `None` if no piece was too short.
fn short_pieces(case: &Case<'_>) -> Option<String> {
    let spec = case.observed.spec;
    if spec.model != Model::Coded || case.placement.smallest_share().is_some() {
        return None;
    }
    let last_word = spec.last_word();
    let read = case.decoded.contributions.iter().filter(|entry| entry.point == last_word);
    let covered = read.map(|entry| entry.covered).reduce(f64::min)?;
    (covered < 1.0).then(|| {
        format!(
            "weights of short pieces: pieces of fewer than {} elements, up to {}% of the {}, were not decoded, but \
             compared element by element with the plan and with the other pieces",
            Plan::code(spec).shortest(),
            two_digits((1.0 - covered) * 100.0),
            last_word.describe(),
        )
    })
}

/// Lists the parts of a run that were not recorded because they exceed the budget of the trace, with the consequences.
fn left_out(case: &Case<'_>) -> Vec<String> {
    let spec = case.observed.spec;
    let mut missing = Vec::new();
    if let Some(steps) = &spec.recording.steps {
        let why = if steps.len() < MOST_STEPS {
            "the trace is full (raise --trace-budget)".to_owned()
        } else {
            format!("a run records at most {MOST_STEPS} steps")
        };
        missing.push(format!(
            "{} of {} steps: {} were recorded; {why}",
            spec.steps.saturating_sub(steps.len()),
            spec.steps,
            counted("step", steps),
        ));
    }
    if let Some(microbatches) = &spec.recording.microbatches {
        missing.push(format!(
            "events and buffers of microbatches, except for {} of {} in each step: the trace is full (raise \
             --trace-budget); the optimizers' inputs cover all microbatches",
            microbatches.len(),
            spec.gradient_accumulation_steps,
        ));
    }
    if let Some(ranks) = &spec.recording.ranks {
        missing.push(format!(
            "sums of a rank's own gradients, except on {} of {} ranks: the trace is full (raise --trace-budget)",
            ranks.len(),
            spec.world_size,
        ));
    }
    let is_lost = |buffer: &&Buffer<'_>| {
        spec.records_content(buffer.point, buffer.rank) && !buffer.payload.has_content()
    };
    let lost = case.observed.buffers.all.iter().filter(is_lost).count();
    if lost > 0 {
        missing.push(format!(
            "the content of {lost} buffers that differ between ranks: the trace is full (raise --trace-budget)"
        ));
    }
    if spec.model == Model::Coded && spec.steps > spec.code_steps() {
        let period = spec.code_steps();
        missing.push(format!(
            "gradients left over from {period} steps earlier (or a multiple of {period}): they have the codes of \
             the current step's gradients"
        ));
    }
    missing
}

/// Lists the parts of training that this run says nothing about, one sentence each.
pub fn not_exercised(case: &Case<'_>, findings: &[Finding]) -> Vec<String> {
    let (observed, spec) = (&case.observed, case.observed.spec);
    let mut missing =
        if spec.script().is_some() { of_script(case) } else { of_model(case, findings) };
    if spec.world_size == 1 {
        missing.push("averaging across ranks: there is only one rank".to_owned());
    }
    if spec.steps == 1 {
        missing.push("gradients left over from an earlier step: there is only one step".to_owned());
    }
    let has_no_state = matches!(spec.optimizer, Optimizer::Sgd { .. });
    if spec.resume_before.is_some() && has_no_state {
        missing.push(
            "the optimizer's state and rounded master weights in the checkpoint: SGD has no state, and its master \
             weights are exact in the model's dtype (use --optimizer adamw)"
                .to_owned(),
        );
    }
    let a_step = spec.gradient_accumulation_steps;
    let longest = observed.script.ended.values().copied().max().unwrap_or(a_step);
    if longest > a_step {
        missing.push(format!(
            "microbatches after the first {a_step} of a step: the first step has {a_step} microbatches, but a later \
             step has {longest}"
        ));
    } else if a_step == 1 {
        missing.push("gradient accumulation: every microbatch is the boundary".to_owned());
    }
    let never = |it: &RankProcess<'_>| matches!(it.last, None | Some(Event::Importing { .. }));
    let silent = observed.processes.ranks.iter().enumerate().filter(|(_, it)| never(it));
    missing.extend(by_rank(silent.map(|(rank, _)| (rank, "no events were sent".to_owned()))));
    if let Some(share) = case.placement.smallest_share().filter(|share| *share < 1.0) {
        missing.push(format!(
            "most elements of large parameters: of each piece, only the first, the last and some elements in \
             between were recorded, {}% of all elements",
            two_digits(share * 100.0),
        ));
    }
    missing.extend(transformed(case));
    missing.extend(case.missing.describe(observed));
    let unseen = observed.software.not_observed.iter();
    missing.extend(unseen.map(|(what, why)| format!("{what}: not observed, {why}")));
    missing.extend(case.decoded.refusals.iter().map(|refusal| format!("weights of {refusal}")));
    missing
}

/// Describes the parameters whose gradients an engine transforms before the optimizer consumes them; `None` if no
/// gradient is transformed.
fn transformed(case: &Case<'_>) -> Option<String> {
    let observed = &case.observed;
    let all = (0..observed.model.params.len()).filter(|param| observed.is_transformed(*param));
    let names: Vec<String> = all.map(|param| observed.model.param_name(param)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "weights of {}: the gradient is transformed before the optimizer consumes it (Muon's \
             orthogonalisation)",
            abridged(&names)
        )
    })
}

/// Lists the parts of a script's training that its run says nothing about.
fn of_script(case: &Case<'_>) -> Vec<String> {
    let spec = case.observed.spec;
    let mut missing = Vec::new();
    let steps = loss::by_step(case);
    let terms = || steps.values().flatten();
    if steps.is_empty() {
        missing.push(
            "the scale of the loss: the terms of the loss were not read, so weights are relative to the gradient of \
             the loss as it is"
                .to_owned(),
        );
    } else if terms().any(|term| scale::judge(case, term) == scale::SumVerdict::Unknown) {
        missing.push("the scale of a term of the loss: it could not be read".to_owned());
    } else if terms().filter_map(|term| law::read(spec, term)).any(|it| it.law == law::Law::Own) {
        missing.push(
            "the weighting of the elements of the loss, which the script chooses itself".to_owned(),
        );
    }
    let is_observed = spec.script().is_some_and(|script| script.observe.is_some());
    if is_observed {
        missing.push(
            "the first step: zprobe uses this step to find the modules and optimizers to observe"
                .to_owned(),
        );
    } else if spec.steps > 1 {
        missing.push(
            "the first step: zprobe uses its gradients to find the elements that each optimizer holds".to_owned(),
        );
    }
    if spec.script().is_some_and(|script| script.watched_steps() == spec.steps) {
        missing.push(format!(
            "later steps: zprobe watched only the first {} (--observe=N watches N steps)",
            spec.steps
        ));
    }
    missing.extend(short_pieces(case));
    missing
}

/// Lists the parts of training that a run of zprobe's own model says nothing about.
fn of_model(case: &Case<'_>, findings: &[Finding]) -> Vec<String> {
    let (observed, spec) = (&case.observed, case.observed.spec);
    let mut missing = Vec::new();
    if let (Some(fault), [], true) = (spec.inject(), findings, observed.processes.all_finished()) {
        missing.push(format!("the injected fault {fault}: no effect was seen in this run"));
    }
    if spec.model == Model::Mlp {
        missing.push(
            "the scale of the loss before backward: weights are relative to the local gradients, \
             which contain this scale too"
                .to_owned(),
        );
    }
    if spec.model == Model::Coded && !spec.engine().traits().follows_spec {
        missing.push(
            "the dtype in which sums ran: the coded model's integers are exact in every dtype \
             (--model mlp shows the dtype)"
                .to_owned(),
        );
    }
    missing.extend(short_pieces(case));
    missing.extend(left_out(case));
    if !spec.poison_memory {
        missing.push(format!(
            "{UNSET_MEMORY}: it may hold the right values by chance (--poison-memory fills it with NaN)"
        ));
    }
    if spec.has_shape(Shape::Experts) {
        missing.push(
            "experts that are mixed up with each other: all experts get the same data".to_owned(),
        );
    }
    match spec.dataflow() {
        Some(Dataflow::Accumulator) => {
            missing.push("gradient hooks and buckets: this dataflow has none".to_owned());
        }
        Some(Dataflow::IpgBucket) => {
            let flushed =
                |reason| observed.hooks.flushes.iter().any(|flush| flush.reason == reason);
            if !flushed(FlushReason::Full) {
                missing.push("a bucket flushed because it was full".to_owned());
            }
            if !flushed(FlushReason::Oversized) {
                missing.push("a parameter larger than the bucket".to_owned());
            }
        }
        None => {}
    }
    let read = |point| case.decoded.contributions.iter().any(|c| c.point == point);
    if !read(Point::MasterWeights) {
        missing.push(
            "weights read from the update itself: this requires the coded model, and SGD with a \
             learning rate that is a power of two"
                .to_owned(),
        );
    }
    for step in spec.recorded_steps() {
        if (0..spec.world_size).any(|rank| observed.updates.skipped(step, rank)) {
            let why = overflow::reason(observed, &case.plan, step);
            missing.extend(why.map(|why| format!("step {step}: it was skipped, because {why}")));
        }
    }
    missing
}
