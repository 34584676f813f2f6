//! Replicas of a script's parameters: whether ranks begin, and stay, with the same values, and whether they are
//! meant to.

use std::collections::BTreeMap;

use super::deviation::{Deviation, Pattern};
use super::observed::Observed;
use zprobe_report::words::abridged;

/// Parameters of which ranks had different values after a step (none: before the first), by index.
pub fn unlike(observed: &Observed<'_>, after: Option<usize>) -> Vec<usize> {
    let mut known: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let mut unlike = Vec::new();
    let of_step = observed.script.digests.iter().filter(|((step, _), _)| *step == after);
    for ((_, rank), digests) in of_step {
        for (param, digest) in digests.numbers.iter().enumerate() {
            let Some(digest) = digest.filter(|_| observed.has(*rank, param)) else { continue };
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

/// Reason why ranks that do not average gradients may be right; none where they have to.
pub fn why_apart(observed: &Observed<'_>, deviations: &[Deviation]) -> Option<String> {
    observed.spec.script()?;
    if deviations.is_empty() {
        return None;
    }
    let is_own = |it: &Deviation| {
        matches!(it.pattern, Pattern::NotAveraged | Pattern::NotSummed | Pattern::WithinReplica(_))
    };
    let averages = observed.remarks.values().any(|it| it.averages);
    if averages && deviations.iter().all(is_own) {
        return Some(
            "gradients: each rank steps with its own, and parameters or their change are averaged over the ranks \
             (local SGD): which of them are to be shared is not known"
                .to_owned(),
        );
    }
    let unlike = unlike(observed, None);
    let names: Vec<String> = unlike.iter().map(|param| observed.param_name(*param)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "gradients: ranks began with different values of {}: with tensor or expert parallelism each has gradients \
             of its own, and which are to be averaged is not known; without, parameters were never broadcast",
            abridged(&names),
        )
    })
}
