//! Recognises runs about which an issue would be pointless, and says what to do instead.

use super::{Ending, Report, Verdict};
use zprobe_engines as engines;

/// The reason why an issue about a run would be pointless, and what to do instead; `None` if an issue is worthwhile.
pub fn pointless(report: &Report) -> Option<String> {
    let spec = &report.run.spec;
    match report.run.ending {
        Ending::Interrupted => {
            return Some("the run was interrupted: run it again and let it finish".to_owned());
        }
        Ending::CutOff => {
            return Some("the trace ends before the run does: run it again".to_owned());
        }
        Ending::Complete => {}
    }
    match report.verdict {
        Verdict::Clean => return Some("nothing is wrong in this run".to_owned()),
        Verdict::Inconclusive => {
            return Some("the run is inconclusive: `zprobe show` gives the reason".to_owned());
        }
        Verdict::Findings | Verdict::Crashed => {}
    }
    if let Some(fault) = spec.inject() {
        return Some(format!(
            "the fault {fault} was injected into zprobe's own engine, to show what it looks like; run an \
             engine of your own with --engine"
        ));
    }
    if let Some(main) = report.findings.first().filter(|_| report.blames_script()) {
        return Some(format!(
            "{} {} is a mistake in your own script, as far as zprobe can see, and not a bug of an engine: `zprobe \
             show -v` has its place, and `zprobe explain {}` says what to do",
            main.code, main.name, main.code
        ));
    }
    let python = engines::of(spec.engine()).python.as_ref();
    let missing = python.and_then(|python| {
        python.packages().find(|package| !report.run.versions.contains_key(package.module))
    });
    if let (Verdict::Crashed, Some(package)) = (report.verdict, missing) {
        return Some(format!(
            "{} was not imported, which is a problem of the environment: `zprobe doctor` lists what is missing",
            package.title
        ));
    }
    let limits = report.findings.iter().map(|finding| finding.limit.as_deref());
    if let (Some(Some(limit)), true) =
        (limits.clone().next(), limits.clone().all(|it| it.is_some()))
    {
        return Some(format!(
            "a limit of this machine ended the run, which says nothing about gradients: {limit}"
        ));
    }
    let fixed = report
        .findings
        .iter()
        .map(|finding| finding.known.first().filter(|bug| bug.fixed.is_some()));
    if let (Some(Some(bug)), true) = (fixed.clone().next(), fixed.clone().all(|it| it.is_some())) {
        let upgrade = bug.upgrade.as_ref().map(|command| format!(": {command}"));
        return Some(format!(
            "the finding is the known bug {}, {}{}",
            bug.name,
            bug.fix(),
            upgrade.unwrap_or_default()
        ));
    }
    None
}

impl Report {
    /// True if the main finding of a run of a script is assumed to be a mistake in the script: it is no known bug, and no
    /// function of the engine made the first wrong buffer.
    pub(crate) fn blames_script(&self) -> bool {
        let is_of_engine = self.first_divergence.as_ref().is_some_and(|it| it.function.is_some());
        let is_known = self.findings.first().is_some_and(|main| !main.known.is_empty());
        self.run.spec.script().is_some() && !is_of_engine && !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Document, Surroundings};
    use crate::{Divergence, Finding, KnownBug, Severity, blank};
    use zprobe_model::spec::{
        Engine, Fault, Found, RunSpec, Scale, ScriptOptions, SpecRequest, Weighting,
    };
    use zprobe_model::visible::Visible;

    /// A report on a DDP run with one finding.
    fn found() -> Report {
        let request = SpecRequest { engine: Some(Engine::Ddp), ..SpecRequest::default() };
        let mut report = blank::report(request.resolve().unwrap());
        report.verdict = Verdict::Findings;
        report.findings = vec![Finding {
            code: "ZP102".parse().unwrap(),
            name: "microbatch-missing".to_owned(),
            severity: Severity::Error,
            message: "no gradient reached the optimizer".to_owned(),
            step: Some(0),
            microbatch: None,
            rank: None,
            param: None,
            bucket: None,
            evidence: Vec::new(),
            consequences: Vec::new(),
            known: Vec::new(),
            limit: None,
            location: None,
        }];
        report
    }

    fn bug(fixed: Option<&str>) -> KnownBug {
        KnownBug {
            name: "a-bug".to_owned(),
            title: "A bug".to_owned(),
            links: Vec::new(),
            affected: "torch <2.12".to_owned(),
            fixed: fixed.map(str::to_owned),
            cause: String::new(),
            workaround: String::new(),
            summary: String::new(),
            package: fixed.map(|_| "torch".to_owned()),
            upgrade: fixed.map(|release| format!("pip install 'torch>={release}'")),
        }
    }

    #[test]
    fn a_finding_that_nobody_knows_or_nobody_fixed_is_worth_an_issue() {
        assert_eq!(pointless(&found()), None);
        let mut unfixed = found();
        unfixed.findings[0].known = vec![bug(None)];
        assert_eq!(pointless(&unfixed), None);
        let mut beside = found();
        beside.findings[0].known = vec![bug(Some("2.12.0"))];
        beside.findings.extend(found().findings);
        assert_eq!(pointless(&beside), None, "one of two findings is known");
    }

    #[test]
    fn a_run_that_no_maintainer_wants_to_hear_of_is_refused_with_its_reason() {
        let with = |change: fn(&mut Report)| {
            let mut report = found();
            change(&mut report);
            pointless(&report).expect("a reason")
        };
        let fixed = with(|it| it.findings[0].known = vec![bug(Some("2.12.0"))]);
        assert!(fixed.ends_with("fixed in 2.12.0: pip install 'torch>=2.12.0'"), "{fixed}");
        let interrupted = with(|it| it.run.ending = Ending::Interrupted);
        assert!(interrupted.contains("interrupted"), "{interrupted}");
        let clean = with(|it| it.verdict = Verdict::Clean);
        assert!(clean.contains("nothing is wrong"), "{clean}");
        let limit = with(|it| it.findings[0].limit = Some("no bf16 here".to_owned()));
        assert!(limit.ends_with("no bf16 here"), "{limit}");
        let missing = with(|it| {
            it.verdict = Verdict::Crashed;
            it.run.versions.clear();
        });
        assert!(missing.starts_with("torch was not imported"), "{missing}");
        let mut script = found();
        let options = ScriptOptions {
            command: vec!["python".to_owned()],
            dry: false,
            observe: None,
            weighting: Weighting::default(),
            scale: Scale::default(),
            reserved: None,
        };
        script.run.spec = RunSpec::of_script(options, &Found::nothing(0, 600));
        let reason = pointless(&script).unwrap();
        assert!(
            reason.starts_with("ZP102 microbatch-missing is a mistake in your own"),
            "{reason}"
        );
        script.findings[0].known = vec![bug(None)];
        assert_eq!(pointless(&script), None, "a bug of the engine that a script shows");
        script.findings[0].known.clear();
        script.first_divergence = Some(Divergence {
            step: 0,
            microbatch: None,
            point: None,
            ranks: vec![0],
            params: None,
            bucket: None,
            function: Some("Reducer::finalize_bucket_dense".to_owned()),
            outside_backward: false,
            right_before: 0,
        });
        let around = Surroundings { run_dir: Some("dir"), ..Surroundings::default() };
        let next =
            Document::of(&Visible::of(&script).unwrap()).unwrap().next(&script, &around).unwrap();
        assert_eq!(next, "next: zprobe explain ZP102; if the script is right: zprobe issue dir");
        let request = SpecRequest { inject: Some(Fault::BoundaryLeak), ..SpecRequest::default() };
        let mut injected = blank::report(request.resolve().unwrap());
        injected.verdict = Verdict::Findings;
        assert!(pointless(&injected).unwrap().contains("injected"));
    }
}
