//! The parts of a report that are no findings: specification, norms, ranks, buckets, hooks, power and limits of the
//! run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Case;
use super::account::{account, phrases};
use super::bounds;
use super::judged;
use super::loss::{self, contract, law, scale};
use super::observed::{BackwardAt, BucketFlush, Buffer, Process};
use super::overflow;
use super::remarks;
use super::rules::MUST_AGREE;
use zprobe_model::spec::{Dataflow, MOST_STEPS, Model, Plan, Shape};
use zprobe_model::trace::{Event, FlushReason, LayoutName, Point, UNSET_MEMORY};
use zprobe_report::words::{abridged, by_rank, counted, two_digits, weight_text};
use zprobe_report::{
    Finding, Firings, Flush, HookCount, Hooks, Method, Norms, NotObserved, Power, Rank, Run, Stack,
};
use zprobe_zoo::TRAINERS;

/// Returns the specification of the run and the versions of the software that it ran on.
pub fn run(case: &Case<'_>) -> Run {
    let observed = &case.observed;
    let mut versions = BTreeMap::from([("zprobe".to_owned(), observed.zprobe.to_owned())]);
    for process in &observed.processes {
        versions
            .extend(process.versions.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    }
    Run {
        spec: observed.spec.clone(),
        versions,
        optimizer_class: observed.optimizer.map(|(class, _)| class.to_owned()),
        inner_optimizer: observed.optimizer.map(|(_, inner)| inner.to_owned()),
        engine_facts: engine_facts(case),
        not_observed: observed
            .not_observed
            .iter()
            .map(|&(what, why)| NotObserved { what: what.to_owned(), why: why.to_owned() })
            .collect(),
        ending: observed.ending(),
        command: None,
    }
}

/// Collects the facts that the engines of all ranks state about themselves; a fact that ranks agree on is listed
/// once.
fn engine_facts(case: &Case<'_>) -> BTreeMap<String, String> {
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    for (rank, facts) in &case.observed.facts {
        for (name, value) in *facts {
            if said.get(name).is_some_and(|known| known != value) {
                said.insert(format!("{name} (rank {rank})"), value.clone());
            } else {
                said.insert(name.clone(), value.clone());
            }
        }
    }
    let steps = loss::by_step(case);
    let last = steps.values().next_back();
    said.extend(
        last.and_then(|terms| contract::describe(case, terms))
            .map(|it| ("contract".to_owned(), it)),
    );
    said.extend(judged::describe(case, &steps).map(|it| ("judged".to_owned(), it)));
    let trainers = case.observed.remarks.values().flat_map(|it| it.engines.iter().cloned());
    let trainers: BTreeSet<String> = trainers.collect();
    if !trainers.is_empty() {
        let trainers: Vec<String> = trainers.into_iter().collect();
        said.insert(TRAINERS.to_owned(), trainers.join(", "));
    }
    said.extend(remarks::places(case).map(|places| ("places".to_owned(), places)));
    said.extend(common_factor(case).map(|factor| ("factor of all gradients".to_owned(), factor)));
    said
}

/// Describes the factor by which a user's script multiplied all gradients; `None` if no factor was read.
fn common_factor(case: &Case<'_>) -> Option<String> {
    let factors = || case.decoded.factors.values().map(|factor| factor.value);
    let (least, most) = (factors().reduce(f64::min)?, factors().reduce(f64::max)?);
    let average = 1.0 / case.observed.replicas() as f64;
    let is = |wanted: f64| (most / wanted - 1.0).abs() < bounds::SAME_SCALE;
    Some(if most / least - 1.0 >= bounds::SAME_SCALE {
        format!("{} to {}", weight_text(least), weight_text(most))
    } else if is(1.0) && average == 1.0 {
        "1".to_owned()
    } else if is(average) {
        format!("{}, an average over the ranks", weight_text(most))
    } else if is(1.0) {
        "1, a sum over the ranks".to_owned()
    } else if average == 1.0 {
        format!("{most:.3e}")
    } else {
        format!("{most:.3e}: an average over the ranks times {:.3e}", most / average)
    })
}

/// Returns the norms of gradient buffers: one row for each moment, one column for each rank.
pub fn norms(case: &Case<'_>) -> Vec<Norms> {
    // Moments are listed in the order in which the first rank reached them.
    let mut moments: Vec<Vec<&Buffer<'_>>> = Vec::new();
    let mut places = HashMap::new();
    for buffer in &case.observed.buffers {
        if !matches!(buffer.point, Point::Accumulator | Point::Reduced | Point::BeforeStep) {
            continue;
        }
        let moment = (buffer.step, buffer.microbatch, buffer.point);
        let place = *places.entry(moment).or_insert(moments.len());
        match moments.get_mut(place) {
            Some(held) => held.push(buffer),
            None => moments.push(vec![buffer]),
        }
    }
    moments.iter().filter_map(|held| norms_of(case, held)).collect()
}

/// Returns the row of one moment; `held` has the buffer of each rank at that moment.
fn norms_of(case: &Case<'_>, held: &[&Buffer<'_>]) -> Option<Norms> {
    let first = held.first()?;
    let mut norms = vec![None; case.observed.spec.world_size];
    for buffer in held {
        norms[buffer.rank] = buffer.payload.norm;
    }
    // Different partitions are not comparable, and neither are different parts of a model.
    let is_whole = |buffer: &&Buffer<'_>| {
        buffer.layout == LayoutName::Full
            && case.observed.first_with_same_params(buffer.rank).is_none()
    };
    let whole = held.iter().all(is_whole);
    let must_agree = whole && MUST_AGREE.contains(&first.point);
    let digest = &first.payload.digest;
    let difference = |norm: &Option<f64>| match (norm, norms[0]) {
        (Some(norm), Some(reference)) if reference != 0.0 => {
            Some((norm - reference) / reference * 100.0)
        }
        _ => None,
    };
    Some(Norms {
        step: first.step?,
        microbatch: first.microbatch,
        point: first.point,
        agree: must_agree.then(|| held.iter().all(|buffer| buffer.payload.digest == *digest)),
        difference_percent: norms.iter().filter(|_| whole).map(difference).collect(),
        norms,
    })
}

/// Returns the ending of each rank.
pub fn ranks(case: &Case<'_>) -> Vec<Rank> {
    let host_stderr = case.observed.host_stderr;
    case.observed
        .processes
        .iter()
        .enumerate()
        .map(|(rank, process)| Rank {
            rank,
            pid: process.pid,
            outcome: process.outcome,
            finished: process.finished,
            last: last_words(process),
            failure: process.failure.map(account),
            stderr: match process.stderr {
                Some(tail) => Some(log(&format!("rank-{rank}"), tail)),
                None => host_stderr.filter(|_| process.pid.is_none()).map(|tail| log("host", tail)),
            },
            stacks: stacks(process),
        })
        .collect()
}

/// Returns the name of the log with the standard error of a process, and the known phrases in the log's end.
fn log(process: &str, tail: &str) -> String {
    [format!("{process}.stderr.log")]
        .into_iter()
        .chain(phrases(tail).into_iter().map(str::to_owned))
        .collect::<Vec<_>>()
        .join(": ")
}

/// Returns the Python stacks of a rank, with the main thread first.
fn stacks(process: &Process<'_>) -> Vec<Stack> {
    let stacks = process.stacks.iter();
    stacks.map(|(&thread, frames)| Stack { thread, frames: frames.to_vec() }).collect()
}

/// Describes the last known activity of a rank.
pub fn last_words(process: &Process<'_>) -> String {
    let phase = match process.last_phase {
        Some(Event::PhaseEntered { step, microbatch, phase }) => {
            Some(format!("{phase} of step {step}, microbatch {microbatch}"))
        }
        _ => None,
    };
    let phase = phase.unwrap_or_else(|| "start-up".to_owned());
    match process.last {
        None if !process.stacks.is_empty() => "before its first backward".to_owned(),
        None => "it never sent an event".to_owned(),
        Some(Event::Finished) => "finished".to_owned(),
        Some(Event::Importing { what }) => format!("importing {what}"),
        Some(Event::Failed { .. }) if process.versions.is_none() && !process.stacks.is_empty() => {
            "before its first backward".to_owned()
        }
        Some(Event::RankReady { .. }) => "ready, joining the other ranks".to_owned(),
        Some(Event::CollectiveEntered { sequence, op, dtype, numel }) => {
            format!("in collective {sequence} ({op} of {numel} {dtype}), {phase}")
        }
        Some(_) => phase,
    }
}

/// Returns the bucket flushes; ranks with equal flushes share an entry.
pub fn buckets(case: &Case<'_>) -> Vec<Flush> {
    let mut flushes: Vec<Flush> = Vec::new();
    for flush in &case.observed.flushes {
        let BucketFlush { rank, step, microbatch, flush: number, reason, elements, .. } = *flush;
        let params: Vec<String> =
            flush.params.iter().map(|&param| case.observed.param_name(param)).collect();
        let same = flushes.iter_mut().find(|known| {
            (known.step, known.microbatch, known.flush) == (step, microbatch, number)
                && (known.reason, known.elements) == (reason, elements)
                && known.params == params
        });
        match same {
            Some(known) => known.ranks.push(rank),
            None => flushes.push(Flush {
                step,
                microbatch,
                flush: number,
                ranks: vec![rank],
                reason,
                elements,
                capacity: flush.capacity,
                params,
            }),
        }
    }
    flushes
}

/// Compares the gradient hooks with the autograd graph.
pub fn hooks(case: &Case<'_>) -> Hooks {
    let counts: Vec<HookCount> = case
        .observed
        .backwards
        .iter()
        .map(|(at, backward)| {
            let fired = backward.fired;
            let silent = backward
                .silent()
                .into_iter()
                .map(|param| case.observed.param_name(param))
                .collect();
            HookCount {
                step: at.step,
                microbatch: at.microbatch,
                part: at.part,
                rank: at.rank,
                accumulate_grad_nodes: backward.accumulate_grad_nodes,
                fired: fired.map(|fired| fired.iter().map(|&count| count as usize).sum()),
                silent,
            }
        })
        .collect();
    Hooks {
        observed: counts.iter().any(|count| count.fired.is_some()),
        counts,
        params: case.observed.params.iter().map(|param| param.name.clone()).collect(),
        firings: firings(case),
    }
}

/// Returns the backwards parameter by parameter; ranks with equal backwards share an entry.
fn firings(case: &Case<'_>) -> Vec<Firings> {
    let params = case.observed.params.len();
    let counts = |list: Option<&[u32]>| -> Option<Vec<u32>> {
        list.map(|list| (0..params).map(|p| list.get(p).copied().unwrap_or(0)).collect())
    };
    let mut all: Vec<Firings> = Vec::new();
    for (&BackwardAt { step, microbatch, part, rank }, backward) in &case.observed.backwards {
        let mut reached = vec![false; params];
        for &param in backward.reached {
            if let Some(reached) = reached.get_mut(param) {
                *reached = true;
            }
        }
        let own = Firings {
            step,
            microbatch,
            part,
            ranks: vec![rank],
            reached,
            arrived: counts(backward.arrived),
            fired: counts(backward.fired),
        };
        let alike = |known: &&mut Firings| {
            (&known.reached, &known.arrived, &known.fired)
                == (&own.reached, &own.arrived, &own.fired)
        };
        // Backwards are in order, so that entries of the same backward on other ranks are at the end.
        let same_backward = |known: &&mut Firings| {
            (known.step, known.microbatch, known.part) == (step, microbatch, part)
        };
        match all.iter_mut().rev().take_while(same_backward).find(alike) {
            Some(known) => known.ranks.push(rank),
            None => all.push(own),
        }
    }
    all
}

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
            "a change of {deviation:.1e} of one contribution (1 of {contributions}) in one \
             element{looked_at}"
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

/// Describes the pieces at the last word ([`zprobe_model::spec::RunSpec::last_word`]) that were too short to be
/// decoded by themselves; `None` if there are none.
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
            "weights of short pieces: pieces of less than {} elements, up to {}% of the \
             {}, were not decoded, but compared element by element with the plan and with the other pieces",
            Plan::code(spec).shortest(),
            two_digits((1.0 - covered) * 100.0),
            last_word.describe(),
        )
    })
}

/// Lists the parts of a run that its trace has no room for, with the consequences.
fn left_out(case: &Case<'_>) -> Vec<String> {
    let spec = case.observed.spec;
    let mut missing = Vec::new();
    if let Some(steps) = &spec.recording.steps {
        let why = if steps.len() < MOST_STEPS {
            "the trace has no room for more (--trace-budget)".to_owned()
        } else {
            format!("no run records more than {MOST_STEPS}")
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
            "events and buffers of the ranks for all but {} of {} microbatches of each step: the trace \
             has no room for more (--trace-budget); the optimizers' inputs cover all microbatches",
            microbatches.len(),
            spec.gradient_accumulation_steps,
        ));
    }
    if let Some(ranks) = &spec.recording.ranks {
        missing.push(format!(
            "sums of a rank's own gradients, except on {} of {} ranks: the trace has no room for more \
             (--trace-budget)",
            ranks.len(),
            spec.world_size,
        ));
    }
    let is_lost = |buffer: &&Buffer<'_>| {
        spec.records_content(buffer.point, buffer.rank) && !buffer.payload.has_content()
    };
    let lost = case.observed.buffers.iter().filter(is_lost).count();
    if lost > 0 {
        missing.push(format!(
            "the content of {lost} buffers that differ between ranks: the trace has no room \
             for it (--trace-budget)"
        ));
    }
    if spec.model == Model::Coded && spec.steps > spec.code_steps() {
        let period = spec.code_steps();
        missing.push(format!(
            "the age of a gradient that is left over from {period} steps before (or a multiple of \
             that): it looks like a gradient of the step itself"
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
    let a_step = spec.gradient_accumulation_steps;
    let longest = observed.script.ended.values().copied().max().unwrap_or(a_step);
    if longest > a_step {
        missing.push(format!(
            "microbatches beyond the first {a_step} of a step: the first step has no more, a later step has {longest}"
        ));
    } else if a_step == 1 {
        missing.push("gradient accumulation: every microbatch is the boundary".to_owned());
    }
    let never = |it: &Process<'_>| matches!(it.last, None | Some(Event::Importing { .. }));
    let silent = observed.processes.iter().enumerate().filter(|(_, it)| never(it));
    missing.extend(by_rank(silent.map(|(rank, _)| (rank, "it sent no events".to_owned()))));
    if let Some(share) = case.placement.smallest_share() {
        missing.push(format!(
            "most elements of large parameters: only the first, the last and some elements in between \
             were recorded of each piece; {}% of the elements were looked at",
            two_digits(share * 100.0),
        ));
    }
    missing.extend(transformed(case));
    missing.extend(case.missing.describe(observed));
    let unseen = observed.not_observed.iter();
    missing.extend(unseen.map(|(what, why)| format!("{what}: not observed, {why}")));
    missing.extend(case.decoded.refusals.iter().map(|refusal| format!("weights of {refusal}")));
    missing
}

/// Describes the parameters whose gradients an engine transforms; `None` if there are none.
fn transformed(case: &Case<'_>) -> Option<String> {
    let observed = &case.observed;
    let all = (0..observed.params.len()).filter(|param| observed.is_transformed(*param));
    let names: Vec<String> = all.map(|param| observed.param_name(param)).collect();
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
            "the loss: its terms were not read, so that weights are those of the gradients after the loss"
                .to_owned(),
        );
    } else if terms().any(|term| scale::judge(case, term) == scale::Sum::Unknown) {
        missing.push("the scale of a term of the loss that a custom function computes".to_owned());
    } else if terms().filter_map(|term| law::read(spec, term)).any(|it| it.law == law::Law::Own) {
        missing.push("the law of a loss whose elements the script weighs itself".to_owned());
    }
    let is_observed = spec.script().is_some_and(|script| script.observe.is_some());
    if is_observed {
        missing.push("the first step: zprobe uses it to find what there is to observe".to_owned());
    } else if spec.steps > 1 {
        missing.push(
            "the first step: its gradients show which elements each optimizer holds".to_owned(),
        );
    }
    missing.extend(short_pieces(case));
    missing
}

/// Lists the parts of training that a run of zprobe's own model says nothing about.
fn of_model(case: &Case<'_>, findings: &[Finding]) -> Vec<String> {
    let (observed, spec) = (&case.observed, case.observed.spec);
    let mut missing = Vec::new();
    if let (Some(fault), [], true) = (spec.inject(), findings, observed.all_finished()) {
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
            let flushed = |reason| observed.flushes.iter().any(|flush| flush.reason == reason);
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
        if (0..spec.world_size).any(|rank| observed.skipped(step, rank)) {
            let why = overflow::reason(observed, &case.plan, step);
            missing.extend(why.map(|why| format!("step {step}: it was skipped, because {why}")));
        }
    }
    missing
}
