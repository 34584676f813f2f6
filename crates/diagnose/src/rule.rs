//! A rule, and the sightings that it reports.

use zprobe_report::{Finding, RuleCode, Severity};

use crate::case::Case;
use crate::deviation::Pattern;
use crate::scope::Scope;

/// A rule with its check and its documentation.
pub struct Rule {
    /// The code of the rule, for example `ZP101`. A code is never reused.
    pub code: RuleCode,
    /// The name of the rule, for example `boundary-leak`.
    pub name: &'static str,
    /// True if a finding means that the engine crashed or hung.
    pub crash: bool,
    /// True if the rule is about state that passes from each step to the next, so that a cause may lie in an earlier
    /// step.
    pub is_handed_on: bool,
    /// The codes of rules whose findings explain those of this rule, in order of preference.
    pub explained_by: &'static [RuleCode],
    /// The documentation of the rule, as `zprobe explain` prints it.
    pub doc: &'static str,
    /// The check, which returns everything that the rule sees in a case.
    pub check: fn(&Case<'_>, &Rule) -> Vec<Sighting>,
}

/// A finding of a rule, with the scope in which it holds.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The finding. Its step, microbatch, rank and parameter are taken from the scope where they are left open here.
    pub finding: Finding,
    /// The steps, gradients, parameters and ranks for which the finding holds.
    pub scope: Scope,
    /// The criterion by which this sighting is merged with other sightings of the rule into one finding.
    pub merge: Merge,
}

/// The criterion by which two sightings of a rule are merged into one finding.
#[derive(Clone, Debug)]
pub enum Merge {
    /// The sighting is never merged with another one.
    Never,
    /// All sightings of the rule with this criterion are merged, and the first sighting gives the message.
    All,
    /// Sightings with the same pattern of weights are merged.
    Pattern(Pattern),
    /// Sightings of gradients that are displaced by the same number of elements are merged. Sightings with several
    /// distances (`None`) are merged with each other.
    Distance(Option<i64>),
}

impl Rule {
    /// Creates a finding of this rule with a message and no other content.
    pub fn finding(&self, message: String) -> Finding {
        Finding {
            code: self.code,
            name: self.name.to_owned(),
            severity: Severity::Error,
            message,
            step: None,
            microbatch: None,
            rank: None,
            param: None,
            bucket: None,
            evidence: Vec::new(),
            consequences: Vec::new(),
            known: Vec::new(),
            limit: None,
            location: None,
        }
    }

    /// Returns the sightings of `in_step` in the recorded steps of a user's script, without a last step in which the
    /// script broke. Empty for runs of zprobe's own model.
    pub fn in_steps_of_script(
        &self,
        case: &Case<'_>,
        in_step: fn(&Case<'_>, &Rule, usize) -> Option<Sighting>,
    ) -> Vec<Sighting> {
        let spec = case.observed.spec;
        let steps = spec.script().into_iter().flat_map(|_| spec.recorded_steps());
        let is_over =
            |step: &usize| case.observed.processes.all_finished() || step + 1 < spec.steps;
        steps.filter(is_over).filter_map(|step| in_step(case, self, step)).collect()
    }
}

impl Sighting {
    /// Creates a sighting that is never merged with another one.
    pub fn new(finding: Finding, scope: Scope) -> Self {
        Self { finding, scope, merge: Merge::Never }
    }

    /// Creates a sighting that is merged with all others of its rule made in this way; the first one gives the message.
    pub fn one_of(finding: Finding, scope: Scope) -> Self {
        Self { finding, scope, merge: Merge::All }
    }

    /// True if both sightings belong in one finding, whatever their steps, ranks and parameters.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.finding.code == other.finding.code
            && match (&self.merge, &other.merge) {
                (Merge::All, Merge::All) => true,
                (Merge::Pattern(one), Merge::Pattern(other)) => one.is_like(other),
                (Merge::Distance(one), Merge::Distance(other)) => one == other,
                _ => false,
            }
    }

    /// Merges a sighting that [`Self::is_alike`] accepts into this one.
    pub fn take_in(&mut self, other: Self) {
        if self.finding.rank != other.finding.rank {
            self.finding.rank = None;
        }
        if self.finding.param != other.finding.param {
            self.finding.param = None;
        }
        self.scope.extend(other.scope);
    }
}
