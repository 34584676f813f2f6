//! ZP903: a rank wrote a line on its event channel that violates the protocol.

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::Violation;
use zprobe_report::RuleCode;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP903"),
    name: "protocol-broken",
    crash: true,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../docs/ZP903.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    case.observed
        .processes
        .broken
        .iter()
        .map(|broken| {
            let what = match broken.violation {
                Violation::NotJson => {
                    "a line that is not JSON; was something printed to the event channel?"
                }
                Violation::NotARecord => "a line that is not a record of this protocol version",
                Violation::Implausible => {
                    "an event with a step, a microbatch or a size that this run does not have"
                }
                Violation::WrongSender => "a record that claims to come from another sender",
                Violation::OutOfSequence => {
                    "a record whose number does not follow the previous one"
                }
                Violation::TooLong => "a line that does not end",
                Violation::AfterFinished => {
                    "a record after its last one, which said that it had finished"
                }
                Violation::LauncherEvent => "an event that only the launcher may write",
            };
            let who = broken.rank.map_or("the rank host".to_owned(), |rank| format!("rank {rank}"));
            let mut finding = rule.finding(format!("{who} wrote {what}"));
            finding.rank = broken.rank;
            Sighting::new(finding, Scope::default())
        })
        .collect()
}
