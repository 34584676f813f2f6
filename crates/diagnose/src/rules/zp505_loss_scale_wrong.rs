//! ZP505: a dynamic loss scale did not follow its law.

use zprobe_model::spec::ScaleLaw;
use zprobe_report::RuleCode;
use zprobe_report::words::amount;

use crate::case::Case;
use crate::observed::Scaled;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP505"),
    name: "loss-scale-wrong",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP502", "ZP611"]),
    doc: include_str!("../../docs/ZP505.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let Some(law) = ScaleLaw::of(observed.spec) else { return Vec::new() };
    for rank in 0..observed.spec.world_size {
        let scaled = |step| observed.updates.scaled.get(&(step, rank)).copied();
        let steps: Vec<Scaled> = (0..observed.spec.steps).map_while(scaled).collect();
        let Some((step, what)) = first_breach(law, &steps) else { continue };
        let mut finding = rule.finding(what);
        let line = |(step, scaled): (usize, &Scaled)| {
            let overflow = if scaled.overflow { ", overflow" } else { "" };
            format!("step {step}: loss scale {}{overflow}", scaled.scale)
        };
        finding.evidence.extend(steps.iter().take(step + 2).enumerate().map(line));
        let holders = Extent::of([rank], observed.spec.world_size);
        // The first wrong scale is that of the next step.
        return vec![Sighting::new(finding, Scope { holders, ..Scope::step(step + 1) })];
    }
    Vec::new()
}

/// The first step after which the scale broke its law, and what the law says.
fn first_breach(law: ScaleLaw, steps: &[Scaled]) -> Option<(usize, String)> {
    let (mut good, mut overflows) = (0, 0);
    for (step, pair) in steps.windows(2).enumerate() {
        let (before, after) = (pair[0].scale, pair[1].scale);
        let is_overflow = pair[0].overflow;
        if is_overflow {
            (good, overflows) = (0, overflows + 1);
        } else {
            good += 1;
            overflows = if law.is_consecutive { 0 } else { overflows };
        }
        let change = format!("after step {step} the loss scale changed from {before} to {after}");
        if after > before {
            if is_overflow {
                return Some((step, format!("{change}, but the step had an overflow")));
            }
            if good < law.window {
                let why = format!(
                    "but the scale may grow only after {} steps without overflow, and there were {good}",
                    law.window
                );
                return Some((step, format!("{change}, {why}")));
            }
            (good, overflows) = (0, 0);
        } else if after < before && !is_overflow {
            return Some((step, format!("{change}, but the step had no overflow")));
        } else if after == before
            && after > law.smallest
            && is_overflow
            && overflows >= law.hysteresis
        {
            let what = format!(
                "the loss scale stayed at {before} after {}, the last in step {step}; {} should shrink the scale",
                amount(overflows, "overflow"),
                amount(law.hysteresis, "overflow")
            );
            return Some((step, what));
        }
        let shrunk = (before / 2.0).max(law.smallest);
        if after != before && after != 2.0 * before && after != shrunk {
            return Some((step, format!("{change}, but a scale is only halved or doubled")));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAW: ScaleLaw =
        ScaleLaw { window: 2, hysteresis: 2, is_consecutive: false, smallest: 1.0 };

    fn breach(law: ScaleLaw, steps: &[(f64, bool)]) -> Option<usize> {
        let steps: Vec<Scaled> =
            steps.iter().map(|&(scale, overflow)| Scaled { scale, overflow }).collect();
        first_breach(law, &steps).map(|(step, _)| step)
    }

    #[test]
    fn a_scale_that_follows_its_law_is_no_breach() {
        let steps = [(8., true), (8., true), (4., true), (2., false), (2., false), (4., false)];
        assert_eq!(breach(LAW, &steps), None);
        assert_eq!(breach(LAW, &[(1., true), (1., true), (1., true)]), None);
        let law = ScaleLaw { is_consecutive: true, ..LAW };
        assert_eq!(breach(law, &[(8., true), (8., false), (8., true), (8., false)]), None);
    }

    #[test]
    fn each_way_to_break_the_law_is_a_breach() {
        assert_eq!(breach(LAW, &[(8., false), (16., false)]), Some(0));
        assert_eq!(breach(LAW, &[(8., true), (16., false)]), Some(0));
        assert_eq!(breach(LAW, &[(8., false), (4., false)]), Some(0));
        assert_eq!(breach(LAW, &[(8., true), (8., true), (8., false)]), Some(1));
        assert_eq!(breach(LAW, &[(8., true), (8., true), (2., false)]), Some(1));
    }
}
