//! Replicas of parameters on several ranks: where they must agree, and where those of a script differ.

use std::collections::BTreeMap;

use crate::deviation::{Deviation, Pattern};
use crate::observed::Observed;
use zprobe_model::trace::Point;
use zprobe_report::words::abridged;

/// The points at which all ranks with the whole model must hold the same values.
pub const MUST_AGREE: &[Point] = &[
    Point::Reduced,
    Point::BeforeStep,
    Point::OptimizerInput,
    Point::MasterWeights,
    Point::Parameters,
];

/// Returns the indices of the parameters whose values differed between ranks after a step; `after` is `None` for the
/// values before the first step.
pub fn unlike(observed: &Observed<'_>, after: Option<usize>) -> Vec<usize> {
    let mut known: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let mut unlike = Vec::new();
    // A script that ends first reports its last values at its end, when other ranks may have gone on.
    let goes_on = |rank| {
        after.is_none_or(|step| observed.script.ended.contains_key(&(step + 1, rank)))
            || !observed.processes.ranks[rank].finished
    };
    let some_go_on = (0..observed.spec.world_size).any(goes_on);
    let of_step = observed
        .updates
        .digests
        .iter()
        .filter(|((step, rank), _)| *step == after && (goes_on(*rank) || !some_go_on));
    for ((_, rank), digests) in of_step {
        for (param, digest) in digests.numbers.iter().enumerate() {
            let Some(digest) = digest.filter(|_| observed.model.has(*rank, param)) else {
                continue;
            };
            let shard = digests.shards.get(param).copied().unwrap_or(0);
            if *known.entry((param, shard)).or_insert(digest) != digest {
                unlike.push(param);
            }
        }
    }
    unlike.sort_unstable();
    unlike.dedup();
    unlike
}

/// Returns the reason why the ranks of a script may be right not to average their gradients; `None` if they have to
/// average them.
pub fn why_apart(observed: &Observed<'_>, deviations: &[Deviation]) -> Option<String> {
    observed.spec.script()?;
    if let Some(rank) = observed.model.other_rank() {
        return Some(format!(
            "gradients: rank {rank} has other parameters than rank 0, as the stages of a pipeline have; \
             zprobe does not know which parameters and gradients the ranks should share"
        ));
    }
    if deviations.is_empty() {
        return None;
    }
    let is_own = |it: &Deviation| {
        matches!(it.pattern, Pattern::NotAveraged | Pattern::NotSummed | Pattern::WithinReplica(..))
    };
    let averages = observed.script.remarks.values().any(|it| it.averages);
    if averages && deviations.iter().all(is_own) {
        return Some(
            "gradients: each rank steps with its own gradients, and parameters or their changes are averaged over the \
             ranks (local SGD); zprobe cannot tell which gradients should be shared"
                .to_owned(),
        );
    }
    let unlike = unlike(observed, None);
    let names: Vec<String> = unlike.iter().map(|param| observed.model.param_name(*param)).collect();
    // Parameters that joined a model of DDP too late were not broadcast either.
    let is_late = observed.script.are_late(&names);
    (!names.is_empty() && !is_late).then(|| {
        format!(
            "gradients: ranks began with different values of {}. With tensor or expert parallelism each rank has \
             gradients of its own, and zprobe cannot tell which should be averaged; without such parallelism, \
             parameters were never broadcast",
            abridged(&names),
        )
    })
}
