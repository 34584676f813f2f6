//! The diagnosis turns a trace into a report with pure functions: it starts no processes and reads no clock.
//!
//! [`observed`] sorts the events, [`placement`] says which rank holds which elements, [`decode`] reads contribution
//! weights from buffers, and [`deviation`] compares the weights with the plan and recognises patterns. The [`rules`]
//! turn deviations and other facts into findings, and [`causes`] attaches each consequence to its root cause. A live
//! run and `zprobe show RUN_DIR` both call [`diagnose`] with the trace read from disk.

pub mod account;
pub mod bounds;
pub mod causes;
pub mod decode;
pub mod deviation;
pub mod displacement;
mod hooks;
pub mod infinity;
mod journey;
mod judged;
mod loss;
pub mod missing;
pub mod norm;
pub mod observed;
pub mod overflow;
pub mod placement;
mod remarks;
pub mod repeats;
mod replicas;
pub mod rules;
pub mod scope;
mod signatures;
mod stacks;
mod steps;
mod summary;

use zprobe_model::spec::Plan;
use zprobe_model::trace::Trace;
use zprobe_report::{Ending, Finding, Report, Schema, Verdict};
use zprobe_zoo::name_known_bugs;

use self::decode::{Decoded, Scene};
use self::deviation::Deviation;
use self::missing::Missing;
use self::norm::Norms;
use self::observed::Observed;
use self::placement::Placement;

/// All facts that a rule may look at.
pub struct Case<'a> {
    /// The events of the trace, sorted by topic.
    pub observed: Observed<'a>,
    /// The plan of where every gradient should have gone.
    pub plan: Plan,
    /// The placement of the parameters on the ranks.
    pub placement: Placement,
    /// The elements that were not seen in any rank's optimizer.
    pub missing: Missing,
    /// The norms that the gradients must have.
    pub norms: Norms,
    /// The contribution weights that were read from the buffers.
    pub decoded: Decoded,
    /// The deviations of the optimizer's input from the plan.
    pub deviations: Vec<Deviation>,
    /// True if the ranks of a script train separately, as in local SGD, so that their gradients need not be averaged.
    pub is_apart: bool,
    /// The first moment at which repeats of this run differ from it; `None` if they agree or there are no repeats.
    pub repeats: Option<&'a repeats::First>,
}

/// Diagnoses a recorded run.
pub fn diagnose(trace: &Trace) -> Report {
    examine(trace, None)
}

/// Diagnoses a recorded run, given the first difference from its repeats, if there is one.
fn examine(trace: &Trace, repeats: Option<&repeats::First>) -> Report {
    let observed = Observed::new(trace);
    let plan = observed.plan();
    let placement = Placement::new(&observed, &plan);
    let norms = Norms::new(&observed, &plan);
    let missing = Missing::new(&observed, &placement, &plan);
    let scene = Scene {
        observed: &observed,
        plan: &plan,
        placement: &placement,
        missing: &missing,
        norms: &norms,
    };
    let mut decoded = decode::decode(&scene);
    let mut deviations = deviation::find(&observed, &decoded);
    let apart = replicas::why_apart(&observed, &deviations);
    if let Some(why) = &apart {
        deviations.clear();
        decoded.refuse(why.clone());
    }
    let is_apart = apart.is_some();
    let case =
        Case { observed, plan, placement, missing, norms, decoded, deviations, is_apart, repeats };
    let findings = causes::arrange(&case, rules::check_all(&case));
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
        power: summary::power(&case),
        tokens: loss::table(&case),
        remarks: remarks::remarks(&case),
        not_exercised: summary::not_exercised(&case, &findings),
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
    let complete = case.observed.ending() == Ending::Complete;
    if crashed || complete && case.observed.some_broke() {
        Verdict::Crashed
    } else if !findings.is_empty() {
        Verdict::Findings
    } else if !complete || !case.decoded.complete() || case.observed.has_failed_to_see() {
        Verdict::Inconclusive
    } else {
        Verdict::Clean
    }
}
