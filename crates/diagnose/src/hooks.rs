//! Backwards in which gradient hooks did not fire as often as autograd delivered gradients, grouped by parameters.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::observed::{Backward, BackwardAt};
use crate::rule::Sighting;
use crate::scope::{Extent, Scope};
use zprobe_report::Finding;
use zprobe_report::words::abridged;

/// Backwards whose hooks fired too often or not at all, for overlapping sets of parameters.
#[derive(Default)]
pub struct MisfireGroup<'a> {
    /// The backwards in order, each with the parameters whose hooks misfired.
    backwards: Vec<(&'a BackwardAt, &'a Backward<'a>, Vec<usize>)>,
    /// The parameters whose hooks misfired in any backward of the group.
    params: BTreeSet<usize>,
}

/// Groups the backwards in which hooks misfired, in order; `odd` returns the parameters of a backward whose hooks
/// misfired. Independent bugs of different parameters get separate groups.
pub fn groups<'a>(
    case: &'a Case<'_>,
    odd: impl Fn(&Backward<'a>) -> Vec<usize>,
) -> Vec<MisfireGroup<'a>> {
    let mut groups: Vec<MisfireGroup<'a>> = Vec::new();
    for (at, backward) in &case.observed.hooks.backwards {
        let params = odd(backward);
        if params.is_empty() {
            continue;
        }
        let own: BTreeSet<usize> = params.iter().copied().collect();
        let (common, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| !group.params.is_disjoint(&own));
        let mut joined = MisfireGroup::default();
        for group in common {
            joined.params.extend(group.params);
            joined.backwards.extend(group.backwards);
        }
        joined.params.extend(own);
        joined.backwards.push((at, backward, params));
        joined.backwards.sort_by_key(|(at, ..)| *at);
        groups = apart;
        groups.push(joined);
    }
    groups.sort_by_key(|group| group.backwards[0].0);
    groups
}

impl<'a> MisfireGroup<'a> {
    /// Returns the first backward, with the parameters whose hooks misfired in it.
    pub fn first(&self) -> Option<(&'a Backward<'a>, &[usize])> {
        self.backwards.first().map(|(_, backward, params)| (*backward, &params[..]))
    }

    /// Creates the sighting of this group. `kind` says in the evidence how the hooks misfired, such as "silent".
    pub fn sighting(&self, case: &Case<'_>, mut finding: Finding, kind: &str) -> Sighting {
        let names: Vec<String> =
            self.params.iter().map(|&param| case.observed.model.param_name(param)).collect();
        finding.evidence.push(format!("{kind}: {}", abridged(&names)));
        finding.evidence.push(format!(
            "in {} of {} backwards",
            self.backwards.len(),
            case.observed.hooks.backwards.len(),
        ));
        finding.microbatch = self.backwards.first().map(|(at, ..)| at.microbatch);
        let ranks = Extent::of(
            self.backwards.iter().map(|(at, ..)| at.rank),
            case.observed.spec.world_size,
        );
        finding.rank = ranks.only().copied();
        let scope = Scope {
            steps: self.backwards.iter().map(|(at, ..)| at.step).collect(),
            gradients: self.backwards.iter().map(|(at, ..)| (at.rank, at.microbatch)).collect(),
            params: self.params.iter().copied().collect(),
            elements: Extent::All,
            holders: Extent::All,
        };
        Sighting::new(finding, scope)
    }
}
