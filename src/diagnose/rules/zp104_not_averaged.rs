//! ZP104: the reduction across ranks did not take place, at all or for some microbatches.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, counted};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP104",
    name: "not-averaged",
    crash: false,
    explained_by: &["ZP201", "ZP401", "ZP402", "ZP801"],
    doc: include_str!("../../../docs/rules/ZP104.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let world = case.observed.spec.world_size;
    case.deviations
        .iter()
        .filter_map(|deviation| {
            let local = |which: &str| {
                format!(
                    "gradients{which} were not averaged across ranks: each optimizer got its own \
                     rank's {world} times over and nobody else's"
                )
            };
            let (message, microbatch) = match &deviation.pattern {
                Pattern::NotAveraged => (local(""), None),
                Pattern::PartlyAveraged(microbatches) => (
                    local(&format!(" of {}", counted("microbatch", microbatches))),
                    match microbatches[..] {
                        [only] => Some(only),
                        _ => None,
                    },
                ),
                Pattern::NotSummed => (
                    "gradients were not summed across ranks: each optimizer got its own rank's, \
                     divided by the number of ranks, as they are before a reduction has ended"
                        .to_owned(),
                    None,
                ),
                _ => return None,
            };
            let mut finding = rule.deviation(deviation, message);
            finding.microbatch = microbatch;
            Some(finding)
        })
        .fold(Vec::new(), super::merge)
}
