//! ZP102: a gradient never reached the optimizer.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, only_microbatch, sources_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP102",
    name: "microbatch-missing",
    crash: false,
    explained_by: &["ZP201", "ZP401", "ZP402", "ZP701", "ZP801"],
    doc: include_str!("../../../docs/rules/ZP102.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter_map(|deviation| {
            let Pattern::Missing(sources) = &deviation.pattern else { return None };
            let expected = deviation.example.expected.iter().flatten();
            let message = if expected.filter(|expected| **expected != 0.0).count() == sources.len()
            {
                "no gradient reached the optimizer".to_owned()
            } else {
                let missing = sources_text(sources, case.observed.spec.world_size);
                format!("the gradient of {missing} never reached the optimizer")
            };
            let mut finding = rule.deviation(deviation, message);
            finding.microbatch = only_microbatch(sources);
            Some(finding)
        })
        .fold(Vec::new(), super::merge)
}
