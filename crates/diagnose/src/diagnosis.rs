//! The diagnosis of a recorded run, from the trace to the report.

use std::cell::OnceCell;

use zprobe_model::trace::Trace;
use zprobe_report::{Ending, Finding, Report, Schema, Verdict};
use zprobe_zoo::name_known_bugs;

use crate::case::Case;
use crate::decode::{self, Scene};
use crate::missing::UnseenElements;
use crate::norm::PlannedNorms;
use crate::observed::Observed;
use crate::placement::ModelPlacement;
use crate::race::FirstDifference;
use crate::rules::{self, RULES};
use crate::{
    causes, coverage, deviation, journey, location, loss, own_changes, remarks, replicas, steps,
    summary,
};

/// Diagnoses a recorded run.
pub fn diagnose(trace: &Trace) -> Report {
    examine(trace, None)
}

/// Diagnoses a recorded run. `repeats` is the first difference between the run and its repeats, if repeats differ.
pub fn examine(trace: &Trace, repeats: Option<&FirstDifference>) -> Report {
    let mut observed = Observed::new(trace);
    let plan = observed.plan();
    let placement = ModelPlacement::new(&observed, &plan);
    let norms = PlannedNorms::new(&observed, &plan);
    let missing = UnseenElements::new(&observed, &placement, &plan);
    let decode = |observed: &Observed<'_>| {
        let (plan, placement, missing, norms) = (&plan, &placement, &missing, &norms);
        decode::decode(&Scene { observed, plan, placement, missing, norms })
    };
    let mut decoded = decode(&observed);
    let changed = own_changes::steps(&observed, &decoded);
    if !changed.is_empty() {
        observed.buffers.undo_changes(&changed);
        decoded = decode(&observed);
    }
    let mut deviations = deviation::find(&observed, &decoded);
    let apart = replicas::why_apart(&observed, &deviations);
    if let Some(why) = &apart {
        deviations.clear();
        decoded.refuse(why.clone());
    }
    let is_apart = apart.is_some();
    let case = Case {
        observed,
        plan,
        placement,
        missing,
        norms,
        decoded,
        deviations,
        is_apart,
        repeats,
        displacements: OnceCell::new(),
    };
    let mut findings = causes::arrange(&case, RULES, rules::check_all(&case));
    findings.sort_by_key(|finding| !rules::is_crash(finding.code));
    for finding in &mut findings {
        finding.location = location::of(&case, finding);
    }
    let verdict = verdict(&case, &findings);
    let journey = journey::stations(&case);
    let mut report = Report {
        schema: Schema::CURRENT,
        verdict,
        run: summary::run(&case),
        norms: summary::norms(&case),
        steps: steps::steps(&case, trace),
        ranks: summary::ranks(&case),
        buckets: summary::buckets(&case),
        hooks: summary::hooks(&case),
        power: coverage::power(&case),
        tokens: loss::table(&case),
        remarks: remarks::remarks(&case),
        not_exercised: coverage::not_exercised(&case, &findings),
        first_divergence: journey::first_divergence(&case, &journey, &findings),
        journey,
        contributions: case.decoded.contributions,
        contributions_left_out: 0,
        precision: case.decoded.precision,
        findings,
        masked: 0,
        repeats: None,
        minimised: None,
    };
    name_known_bugs(&mut report);
    report.within_bounds()
}

/// Returns the verdict on a run with these findings. A crash outweighs other findings, because the part of the run
/// that the crash prevented may be wrong too.
fn verdict(case: &Case<'_>, findings: &[Finding]) -> Verdict {
    let crashed = findings.iter().any(|finding| rules::is_crash(finding.code));
    let complete = case.observed.processes.ending() == Ending::Complete;
    if crashed || complete && case.observed.some_broke() {
        Verdict::Crashed
    } else if !findings.is_empty() {
        Verdict::Findings
    } else if !complete || !case.decoded.complete() || case.observed.software.has_failed_to_see() {
        Verdict::Inconclusive
    } else {
        Verdict::Clean
    }
}
