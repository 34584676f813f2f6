//! The parts of a report that describe the run: its specification and versions, norms, ranks, buckets and hooks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::account::{account, phrases};
use crate::bounds;
use crate::case::Case;
use crate::judged;
use crate::loss::{self, contract};
use crate::observed::{BackwardAt, BucketFlush, Buffer, RankProcess};
use crate::remarks;
use crate::replicas::MUST_AGREE;
use zprobe_model::trace::{LayoutName, Point};
use zprobe_report::words::weight_text;
use zprobe_report::{Firings, Flush, HookCount, Hooks, Norms, NotObserved, Rank, Run, Stack};
use zprobe_zoo::TRAINERS;

/// Returns the specification of the run and the versions of the software that it ran on.
pub fn run(case: &Case<'_>) -> Run {
    let observed = &case.observed;
    let mut versions = BTreeMap::from([("zprobe".to_owned(), observed.software.zprobe.to_owned())]);
    for process in &observed.processes.ranks {
        versions
            .extend(process.versions.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    }
    Run {
        spec: observed.spec.clone(),
        versions,
        optimizer_class: observed.software.optimizer.map(|(class, _)| class.to_owned()),
        inner_optimizer: observed.software.optimizer.map(|(_, inner)| inner.to_owned()),
        engine_facts: engine_facts(case),
        not_observed: observed
            .software
            .not_observed
            .iter()
            .map(|&(what, why)| NotObserved { what: what.to_owned(), why: why.to_owned() })
            .collect(),
        ending: observed.processes.ending(),
        command: None,
    }
}

/// Collects the facts that the engines of all ranks state about themselves; a fact that ranks agree on is listed
/// once.
fn engine_facts(case: &Case<'_>) -> BTreeMap<String, String> {
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    for (rank, facts) in &case.observed.software.facts {
        for (name, value) in *facts {
            if said.get(name).is_some_and(|known| known != value) {
                said.insert(format!("{name} (rank {rank})"), value.clone());
            } else {
                said.insert(name.clone(), value.clone());
            }
        }
    }
    let steps = loss::by_step(case);
    said.extend(contract::of_run(case, &steps).map(|it| ("contract".to_owned(), it)));
    said.extend(judged::describe(case, &steps).map(|it| ("judged".to_owned(), it)));
    let trainers = case.observed.script.remarks.values().flat_map(|it| it.engines.iter().cloned());
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
        format!("{most:.3e}: {:.3e} times the average over the ranks", most / average)
    })
}

/// Returns the norms of gradient buffers: one entry for each moment of the run, with the norm of each rank.
pub fn norms(case: &Case<'_>) -> Vec<Norms> {
    // Moments are listed in the order in which the first rank reached them.
    let mut moments: Vec<Vec<&Buffer<'_>>> = Vec::new();
    let mut places = HashMap::new();
    for buffer in &case.observed.buffers.all {
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

/// Returns the norms of one moment; `held` has the buffer of each rank at that moment.
fn norms_of(case: &Case<'_>, held: &[&Buffer<'_>]) -> Option<Norms> {
    let first = held.first()?;
    let mut norms = vec![None; case.observed.spec.world_size];
    for buffer in held {
        norms[buffer.rank] = buffer.payload.norm;
    }
    // Different partitions are not comparable, and neither are different parts of a model.
    let is_whole = |buffer: &&Buffer<'_>| {
        buffer.layout == LayoutName::Full
            && case.observed.model.first_with_same_params(buffer.rank).is_none()
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

/// Returns how the process of each rank ended.
pub fn ranks(case: &Case<'_>) -> Vec<Rank> {
    let host_stderr = case.observed.processes.host_stderr;
    case.observed
        .processes
        .ranks
        .iter()
        .enumerate()
        .map(|(rank, process)| Rank {
            rank,
            pid: process.pid,
            outcome: process.outcome,
            finished: process.finished,
            last: process.last_words(),
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
fn stacks(process: &RankProcess<'_>) -> Vec<Stack> {
    let stacks = process.stacks.iter();
    stacks.map(|(&thread, frames)| Stack { thread, frames: frames.to_vec() }).collect()
}

/// Returns the bucket flushes; ranks with equal flushes share an entry.
pub fn buckets(case: &Case<'_>) -> Vec<Flush> {
    let mut flushes: Vec<Flush> = Vec::new();
    for flush in &case.observed.hooks.flushes {
        let BucketFlush { rank, step, microbatch, flush: number, reason, elements, .. } = *flush;
        let params: Vec<String> =
            flush.params.iter().map(|&param| case.observed.model.param_name(param)).collect();
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

/// Counts, for each backward, the gradient hooks that fired and the parameters that the autograd graph reaches.
pub fn hooks(case: &Case<'_>) -> Hooks {
    let counts: Vec<HookCount> = case
        .observed
        .hooks
        .backwards
        .iter()
        .map(|(at, backward)| {
            let fired = backward.fired;
            let silent = backward
                .silent()
                .into_iter()
                .map(|param| case.observed.model.param_name(param))
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
        params: case.observed.model.params.iter().map(|param| param.name.clone()).collect(),
        firings: firings(case),
    }
}

/// Returns the counts of hooks and gradients of each parameter in each backward; ranks with equal counts share an
/// entry.
fn firings(case: &Case<'_>) -> Vec<Firings> {
    let params = case.observed.model.params.len();
    let counts = |list: Option<&[u32]>| -> Option<Vec<u32>> {
        list.map(|list| (0..params).map(|p| list.get(p).copied().unwrap_or(0)).collect())
    };
    let mut all: Vec<Firings> = Vec::new();
    for (&BackwardAt { step, microbatch, part, rank }, backward) in &case.observed.hooks.backwards {
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
