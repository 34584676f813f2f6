//! Backwards in which gradient hooks did not fire as autograd delivered gradients, grouped by
//! parameters.

use std::collections::BTreeSet;

use super::Case;
use super::causes::Sighting;
use super::observed::{Backward, BackwardAt};
use super::scope::{Extent, Scope};
use zprobe_report::Finding;
use zprobe_report::words::abridged;

/// Backwards that have parameters with odd hooks in common.
#[derive(Default)]
pub struct Group<'a> {
    /// Backwards in order, each with its odd parameters.
    backwards: Vec<(&'a BackwardAt, &'a Backward<'a>, Vec<usize>)>,
    /// The odd parameters of all of them.
    params: BTreeSet<usize>,
}

/// Groups of all backwards with `odd` parameters, in order. Two independent bugs of different
/// parameters have a group each.
pub fn groups<'a>(case: &'a Case<'_>, odd: impl Fn(&Backward<'a>) -> Vec<usize>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (at, backward) in &case.observed.backwards {
        let params = odd(backward);
        if params.is_empty() {
            continue;
        }
        let own: BTreeSet<usize> = params.iter().copied().collect();
        let (common, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| !group.params.is_disjoint(&own));
        let mut joined = Group::default();
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

impl<'a> Group<'a> {
    /// The first backward with its odd parameters.
    pub fn first(&self) -> Option<(&'a Backward<'a>, &[usize])> {
        self.backwards.first().map(|(_, backward, params)| (*backward, &params[..]))
    }

    /// A finding about the group: `kind` says what is the matter with the parameters.
    pub fn sighting(&self, case: &Case<'_>, mut finding: Finding, kind: &str) -> Sighting {
        let names: Vec<String> =
            self.params.iter().map(|&param| case.observed.param_name(param)).collect();
        finding.evidence.push(format!("{kind}: {}", abridged(&names)));
        finding.evidence.push(format!(
            "in {} of {} backwards",
            self.backwards.len(),
            case.observed.backwards.len(),
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
