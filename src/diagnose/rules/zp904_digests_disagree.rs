//! ZP904: a buffer's digest came over the process group differently than over the event channel.

use super::super::Case;
use super::Rule;
use crate::report::Finding;
use crate::trace::digest;

pub(super) const RULE: Rule = Rule {
    code: "ZP904",
    name: "digests-disagree",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP904.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gathered in &case.observed.gathered {
        for (source, in_band) in gathered.in_band.iter().enumerate() {
            let Some(out_of_band) = case.observed.digests.get(&(source, gathered.step)) else {
                continue;
            };
            if in_band != out_of_band {
                let mut finding = rule.finding(format!(
                    "rank {source}'s buffers have other digests in band than out of band: what \
                     the process group carries is not what the rank recorded"
                ));
                (finding.step, finding.rank) = (Some(gathered.step), Some(source));
                finding.evidence.push(format!("as rank {} gathered them", gathered.rank));
                findings.push(finding);
            }
        }
    }
    for buffer in &case.observed.buffers {
        let intact = buffer.payload.bytes().is_ok_and(|b| digest(&b) == buffer.payload.digest);
        if !intact {
            let mut finding = rule.finding(format!(
                "a buffer that rank {} recorded does not match its own digest",
                buffer.rank,
            ));
            (finding.step, finding.rank) = (buffer.step, Some(buffer.rank));
            finding.evidence.push(format!("point: {}", buffer.point));
            findings.push(finding);
        }
    }
    findings.into_iter().fold(Vec::new(), super::merge)
}
