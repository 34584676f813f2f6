//! The gradient's way from backward to the optimizer, buffer by buffer (each is a *station*): the first station that
//! departs from the plan, and the stations before it.

use std::collections::{BTreeMap, BTreeSet};

use zprobe_engines as engines;
use zprobe_model::trace::Point;
use zprobe_report::{Contribution, Divergence, Family, Finding, Station};

use crate::case::Case;
use crate::observed::{Buffer, Observed};

/// Lists the stations at which weights were read, in the order of the run.
///
/// All ranks reach the same stations in the same order, but a rank that ended early lacks the last ones.
pub fn stations(case: &Case<'_>) -> Vec<Station> {
    let mut read: BTreeMap<StationKey, (BTreeSet<usize>, BTreeSet<usize>)> = BTreeMap::new();
    for entry in &case.decoded.contributions {
        let (ranks, departed) = read.entry(StationKey::of(entry)).or_default();
        ranks.extend(entry.ranks());
        if !entry.as_planned {
            departed.extend(entry.ranks());
        }
    }
    moments(&case.observed)
        .into_iter()
        .filter_map(|moment| {
            let (ranks, departed) = read.remove(&moment)?;
            let StationKey { step, microbatch, point } = moment;
            let departed = departed.into_iter().collect();
            Some(Station { step, microbatch, point, ranks: ranks.len(), departed })
        })
        .collect()
}

/// Returns the first point on the gradients' way from backward to optimizer that differs from the plan. A finding
/// about hooks or buckets comes before the buffers of its microbatch, because hooks and buckets produce these buffers.
pub fn first_divergence(
    case: &Case<'_>,
    stations: &[Station],
    findings: &[Finding],
) -> Option<Divergence> {
    if findings.is_empty() {
        return None;
    }
    // A script may do a part of the sum after a buffer was recorded: a station counts only if the optimizer's input
    // is wrong too.
    let is_script = case.observed.spec.script().is_some();
    let ends_wrong = |station: &Station| {
        let mut inputs = stations.iter().filter(|it| {
            (it.point, it.step) == (Point::OptimizerInput, station.step) && !it.departed.is_empty()
        });
        inputs.any(|input| match (params(case, station), params(case, input)) {
            (Some(here), Some(there)) => here.iter().any(|param| there.contains(param)),
            _ => true,
        })
    };
    let is_departure =
        |station: &Station| !station.departed.is_empty() && (!is_script || ends_wrong(station));
    let departed = stations.iter().position(is_departure);
    let cause = findings
        .iter()
        .filter(|finding| matches!(finding.code.family(), Family::Hooks | Family::Buckets))
        .filter_map(|finding| {
            let at = (finding.step?, finding.microbatch?);
            let before = stations
                .iter()
                .position(|station| (station.step, station.microbatch.unwrap_or(usize::MAX)) >= at);
            Some((before.unwrap_or(stations.len()), finding))
        })
        .filter(|(before, _)| departed.is_none_or(|departed| *before <= departed))
        .min_by_key(|(before, _)| *before);
    if let Some((before, finding)) = cause {
        return Some(Divergence {
            step: finding.step.unwrap_or_default(),
            microbatch: finding.microbatch,
            point: None,
            ranks: finding
                .rank
                .map_or_else(|| (0..case.observed.spec.world_size).collect(), |rank| vec![rank]),
            params: finding.param.clone().map(|param| vec![param]),
            bucket: finding.bucket,
            function: None,
            outside_backward: false,
            right_before: before,
        });
    }
    let departed = departed?;
    let station = &stations[departed];
    let spec = case.observed.spec;
    let class = case.observed.software.optimizer.map(|(class, _)| class);
    let outside_backward = is_changed_outside(case, station);
    let made_by = |point| (engines::of(case.observed.engine()).function)(spec, class, point);
    let function = made_by(station.point);
    // In a script any code may be at fault, unless the station before was right. A function that produced the right
    // gradient before the step cannot have made it wrong.
    let before = departed.checked_sub(1).map(|before| &stations[before]);
    let may_be = before.filter(|it| it.step == station.step).is_some_and(|before| {
        before.point != Point::BeforeStep || made_by(Point::BeforeStep) != function
    });
    Some(Divergence {
        step: station.step,
        microbatch: station.microbatch,
        point: Some(station.point),
        ranks: station.departed.clone(),
        params: params(case, station),
        bucket: None,
        function: function.filter(|_| !is_script || may_be && !outside_backward).map(str::to_owned),
        outside_backward,
        right_before: departed,
    })
}

/// True if the wrong gradients at a station of a script were changed outside of any backward, after the previous one.
fn is_changed_outside(case: &Case<'_>, station: &Station) -> bool {
    let Some(before) = station.microbatch.and_then(|it| it.checked_sub(1)) else { return false };
    let changed = &case.observed.script.changed;
    let wrong = params(case, station).unwrap_or_default();
    let is_wrong =
        |param: &usize| wrong.is_empty() || wrong.contains(&case.observed.model.param_name(*param));
    let mut of_ranks =
        station.departed.iter().map(|rank| changed.get(&(station.step, before, *rank)));
    // After a reduction, a gradient is wrong on all ranks if one rank changed it.
    of_ranks.any(|params| params.is_some_and(|params| params.iter().any(is_wrong)))
}

/// Returns the names of the parameters that are not as planned at a station; `None` for all parameters.
fn params(case: &Case<'_>, station: &Station) -> Option<Vec<String>> {
    let is_here = |entry: &&Contribution| {
        StationKey::of(entry) == StationKey::at(station) && !entry.as_planned
    };
    let mut params = Vec::new();
    for entry in case.decoded.contributions.iter().filter(is_here) {
        for param in entry.params.as_ref()? {
            push_new(&mut params, param.clone());
        }
    }
    Some(params)
}

/// The point and time by which a station is known: a point of a step, or of one of its microbatches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StationKey {
    step: usize,
    microbatch: Option<usize>,
    point: Point,
}

impl StationKey {
    fn of(entry: &Contribution) -> Self {
        Self { step: entry.step, microbatch: entry.microbatch, point: entry.point }
    }

    fn at(station: &Station) -> Self {
        Self { step: station.step, microbatch: station.microbatch, point: station.point }
    }
}

/// Returns the stations of the rank that recorded most of them, in the order of that rank.
fn moments(observed: &Observed<'_>) -> Vec<StationKey> {
    let mut of_ranks: BTreeMap<usize, Vec<&Buffer<'_>>> = BTreeMap::new();
    for buffer in observed.buffers.all.iter().filter(|buffer| buffer.step.is_some()) {
        of_ranks.entry(buffer.rank).or_default().push(buffer);
    }
    let longest = of_ranks.into_values().rev().max_by_key(Vec::len).unwrap_or_default();
    let mut moments = Vec::new();
    for Buffer { step, microbatch, point, .. } in longest {
        let moment =
            StationKey { step: step.unwrap_or_default(), microbatch: *microbatch, point: *point };
        push_new(&mut moments, moment);
    }
    moments
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, value: T) {
    if !list.contains(&value) {
        list.push(value);
    }
}
