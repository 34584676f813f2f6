//! The comparison of repeats of the same run. If repeats differ in any bit, chance has decided something.
//!
//! Each repeat is diagnosed by itself, like any run. All of its recorded values are also compared with those of the
//! first repeat at the same [`RecordedAt`]. A value that a repeat lacks because it ended early is no difference.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnosis::{diagnose, examine};
use crate::observed::Observed;
use crate::race::{FirstDifference, RecordedAt, ValueDifference, difference, moments};
use crate::rules;
use zprobe_model::trace::Trace;
use zprobe_report::words::{amount, counted};
use zprobe_report::{Consequence, Finding, RepeatDifference, Repeats, Report, Severity, Verdict};

/// The comparison of the repeats of a run, to which repeats are added one after the other.
pub struct RepeatComparison {
    first: Trace,
    /// The number of repeats that reached each moment.
    seen: BTreeMap<RecordedAt, usize>,
    /// The numbers of the repeats that differ from the first one, by moment.
    differing: BTreeMap<RecordedAt, Vec<usize>>,
    /// The first difference between a repeat and repeat 0, by the moment at which the difference occurs.
    how: BTreeMap<RecordedAt, ValueDifference>,
    /// The verdict on each repeat.
    verdicts: Vec<Verdict>,
    /// The findings of each repeat.
    findings: Vec<Vec<Finding>>,
    /// The number of the repeat with the worst verdict, and its report.
    shown: (usize, Report),
}

impl RepeatComparison {
    /// Starts the comparison with repeat 0.
    pub fn new(first: Trace) -> Self {
        let report = diagnose(&first);
        Self {
            seen: moments(&first).into_keys().map(|moment| (moment, 1)).collect(),
            differing: BTreeMap::new(),
            how: BTreeMap::new(),
            verdicts: vec![report.verdict],
            findings: vec![report.findings.clone()],
            shown: (0, report),
            first,
        }
    }

    /// Adds the next repeat, and compares it with repeat 0.
    pub fn add(&mut self, trace: &Trace) {
        let number = self.verdicts.len();
        self.compare(number, trace);
        let report = diagnose(trace);
        self.verdicts.push(report.verdict);
        self.findings.push(report.findings.clone());
        let shown = self.shown.1.verdict;
        // Of repeats with the same verdict, the first one is shown.
        if report.verdict != shown && Verdict::worst([shown, report.verdict]) != Some(shown) {
            self.shown = (number, report);
        }
    }

    fn compare(&mut self, number: usize, trace: &Trace) {
        let (ours, theirs) = (moments(&self.first), moments(trace));
        let (observed, other) = (Observed::new(&self.first), Observed::new(trace));
        let both_finished = observed.processes.all_finished() && other.processes.all_finished();
        let mut is_first = true;
        let mut note = |moment: RecordedAt, how: ValueDifference| {
            self.differing.entry(moment).or_default().push(number);
            if std::mem::take(&mut is_first) {
                self.how.entry(moment).or_insert(how);
            }
        };
        let all: BTreeSet<RecordedAt> = ours.keys().chain(theirs.keys()).copied().collect();
        for moment in all {
            match (ours.get(&moment), theirs.get(&moment)) {
                (Some(one), Some(two)) => {
                    *self.seen.entry(moment).or_default() += 1;
                    if let Some(how) = difference(&observed, moment.rank, one, two) {
                        note(moment, how);
                    }
                }
                (one, _) if both_finished => {
                    *self.seen.entry(moment).or_default() += usize::from(one.is_none());
                    note(moment, ValueDifference::Absent { here: one.is_none() });
                }
                _ => {}
            }
        }
    }

    /// Returns the first moment at which repeats differ, if there is one.
    fn earliest(&self) -> Option<FirstDifference> {
        let (&moment, of_rank) = self.differing.first_key_value()?;
        let beside = self.differing.range(moment..).take_while(|(it, _)| it.is_beside(&moment));
        let (ranks, repeats): (Vec<usize>, Vec<&Vec<usize>>) =
            beside.map(|(it, repeats)| (it.rank, repeats)).unzip();
        let repeats: BTreeSet<usize> = repeats.into_iter().flatten().copied().collect();
        Some(FirstDifference {
            moment,
            repeats: repeats.into_iter().collect(),
            // The first repeat that differs at this moment does not differ before.
            example: of_rank.first().copied().unwrap_or_default(),
            seen: self.seen.get(&moment).copied().unwrap_or(self.verdicts.len()),
            difference: self
                .how
                .get(&moment)
                .cloned()
                .unwrap_or(ValueDifference::Absent { here: false }),
            later: (self.differing.len() - ranks.len(), self.seen.len()),
            ranks,
        })
    }

    /// Creates the report on all repeats: the report on the worst repeat, with the findings of the others and the
    /// differences between repeats.
    pub fn report(self) -> Report {
        let count = self.verdicts.len();
        let earliest = self.earliest();
        let race = examine(&self.first, earliest.as_ref())
            .findings
            .into_iter()
            .filter(|finding| rules::is_about_repeats(finding.code));
        let mut race: Vec<Finding> = race.collect();
        let (shown, mut report) = self.shown;
        report.findings = merged(&self.findings, shown);
        // Repeats may differ although each of them is clean.
        let of_all = self.verdicts.iter().copied().chain(race.first().map(|_| Verdict::Findings));
        report.verdict = Verdict::worst(of_all).unwrap_or(report.verdict);
        if let Some(race) = race.first_mut() {
            report.findings = without_consequences(race, report.findings, &self.findings);
        }
        report.findings.extend(race);
        report.not_exercised.push(format!(
            "races that did not occur in {}; more repeats or a busier machine might trigger them",
            amount(count, "repeat"),
        ));
        let differences = self.differing.iter().map(|(moment, repeats)| RepeatDifference {
            step: moment.step,
            microbatch: moment.microbatch(),
            rank: moment.rank,
            what: moment.what.describe().to_owned(),
            repeats: repeats.clone(),
        });
        report.repeats = Some(Repeats {
            shown,
            compared: self.seen.len(),
            differences: differences.collect(),
            verdicts: self.verdicts,
        });
        report
    }
}

/// Merges the findings of all repeats, so that each rule has one finding: that of the shown repeat, if it has one. If
/// only some repeats have the finding, its evidence lists them.
fn merged(by_repeat: &[Vec<Finding>], shown: usize) -> Vec<Finding> {
    let mut findings: Vec<Finding> = by_repeat[shown].clone();
    for finding in by_repeat.iter().flatten() {
        if !findings.iter().any(|known| known.code == finding.code) {
            findings.push(finding.clone());
        }
    }
    for finding in &mut findings {
        if !in_all(by_repeat, &finding.code) {
            let repeats: Vec<usize> =
                (0..by_repeat.len()).filter(|&it| has(&by_repeat[it], &finding.code)).collect();
            finding.evidence.push(format!(
                "seen in {} of {} repeats: {}",
                repeats.len(),
                by_repeat.len(),
                counted("repeat", &repeats),
            ));
        }
    }
    findings.sort_by_key(|finding| finding.code);
    findings
}

/// Makes each finding that only some repeats have, or that repeats have in different places, a consequence of the
/// race, and returns the others. A crash is never moved, and nothing is moved under a warning, because sums in another
/// order do not cause errors.
fn without_consequences(
    race: &mut Finding,
    findings: Vec<Finding>,
    by_repeat: &[Vec<Finding>],
) -> Vec<Finding> {
    let is_error = race.severity == Severity::Error;
    let follows = |finding: &Finding| {
        let mut codes = finding.consequences.iter().map(|it| &it.code).chain([&finding.code]);
        let is_alike = by_repeat.iter().all(|findings| has_alike(findings, finding));
        is_error && !is_alike && !codes.any(|code| rules::is_crash(*code))
    };
    let (consequences, roots): (Vec<_>, Vec<_>) = findings.into_iter().partition(follows);
    for finding in consequences {
        let seen = match finding.evidence.last() {
            Some(seen) if !in_all(by_repeat, &finding.code) => seen.clone(),
            _ => format!("seen in each of {} repeats, but in different places", by_repeat.len()),
        };
        let message = format!("{} ({seen})", finding.message);
        race.consequences.push(Consequence { code: finding.code, message });
        race.consequences.extend(finding.consequences);
        race.known.extend(finding.known);
    }
    roots
}

/// True if these findings of a repeat, or their consequences, include one of the rule `code`.
fn has(findings: &[Finding], code: &str) -> bool {
    let mut consequences = findings.iter().flat_map(|finding| &finding.consequences);
    findings.iter().any(|it| it.code == code) || consequences.any(|it| it.code == code)
}

/// True if every repeat has a finding or a consequence of the rule `code`.
fn in_all(by_repeat: &[Vec<Finding>], code: &str) -> bool {
    by_repeat.iter().all(|findings| has(findings, code))
}

/// True if the findings of a repeat contain a finding with the same rule and place as `finding`. A consequence with the
/// same rule counts in any place, because its place is unknown.
fn has_alike(findings: &[Finding], finding: &Finding) -> bool {
    let place = |it: &Finding| (it.step, it.microbatch, it.rank, it.bucket, it.param.clone());
    let mut own = findings.iter().filter(|it| it.code == finding.code).peekable();
    match own.peek() {
        Some(_) => own.any(|it| place(it) == place(finding)),
        None => has(findings, &finding.code),
    }
}
