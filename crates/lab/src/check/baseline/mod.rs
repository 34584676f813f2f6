//! The baseline: findings that are known, accepted for a reason, and until a day.
//!
//! [`Baseline::accept`] marks the findings of a case of a suite that are accepted. An accepted
//! finding is still shown; an entry that is out of date accepts nothing, and one that is of no use
//! is reported, so that the file does not outlive its purpose.

mod read;
mod write;

use glob::Pattern;
use toml::value::Date;

use zprobe_report::RuleCode;
use zprobe_report::suite::{Acceptance, Case, CaseFinding, Notice, NoticeKind, Status};

pub use read::{BaselineFile, day};
pub use write::entries;

/// Path at which a baseline is looked for if the user names none.
pub const FILE: &str = "zprobe-baseline.toml";

/// Findings that are accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Path of the baseline.
    file: String,
    entries: Vec<Entry>,
}

/// A finding that is accepted.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// Line of the entry, from 1.
    line: usize,
    /// The rule's code.
    code: RuleCode,
    /// Probes, by name or with the engine before it: `stage1-*`, `deepspeed/*`.
    probe: Pattern,
    /// Rank that the finding must be on; any rank if none.
    rank: Option<usize>,
    /// Parameter that the finding must be about; any parameter if none.
    param: Option<String>,
    /// Reason for accepting the finding.
    reason: String,
    /// Last day on which the finding is accepted.
    expires: Date,
}

impl Entry {
    fn is_about(&self, case: &Case) -> bool {
        self.probe.matches(&case.id()) || self.probe.matches(&case.probe)
    }

    /// Indices of the findings of a case that the entry is about. A finding that the probe expects
    /// is not among them: it needs no excuse.
    fn found_in(&self, case: &Case) -> Vec<usize> {
        let expected = |it: &CaseFinding| it.finding.code == case.expected.as_str();
        let all = case.findings.iter().enumerate().filter(|_| self.is_about(case));
        all.filter(|(_, it)| self.matches(it) && !expected(it)).map(|(at, _)| at).collect()
    }

    fn matches(&self, it: &CaseFinding) -> bool {
        let finding = &it.finding;
        self.code == finding.code
            && (self.rank.is_none() || self.rank == finding.rank)
            && (self.param.is_none() || self.param == finding.param)
    }
}

impl Baseline {
    /// Marks the findings of a case that are accepted on the day `today`.
    pub fn accept(&self, case: &mut Case, today: Date) {
        for entry in self.entries.iter().filter(|entry| entry.expires >= today) {
            for at in entry.found_in(case) {
                case.findings[at].accepted = Some(Acceptance {
                    reason: entry.reason.clone(),
                    expires: entry.expires.to_string(),
                });
            }
        }
        let fails = matches!(case.status, Status::Failed | Status::Crashed);
        let all = case.findings.iter().all(|it| it.accepted.is_some());
        if fails && all && !case.findings.is_empty() && case.expected == "clean" {
            case.status = Status::Accepted;
        }
    }

    /// Notices about entries that have expired by the day `today`, or accept nothing. An entry is
    /// only said to be of no use if a case that it is about has run, or if the suite was not
    /// narrowed down (`whole`) and has no case that it is about.
    pub fn notices(&self, cases: &[Case], today: Date, whole: bool) -> Vec<Notice> {
        let mut notices = Vec::new();
        for entry in &self.entries {
            let about = || cases.iter().filter(|case| entry.is_about(case));
            let used = about().any(|case| !entry.found_in(case).is_empty());
            if used && entry.expires < today {
                notices.push(self.notice(NoticeKind::Expired, entry));
            } else if !used
                && (about().any(Case::run_was_made) || (whole && about().next().is_none()))
            {
                notices.push(self.notice(NoticeKind::Unused, entry));
            }
        }
        notices
    }

    fn notice(&self, kind: NoticeKind, entry: &Entry) -> Notice {
        let Entry { line, code, probe, reason, expires, .. } = entry;
        let message = match kind {
            NoticeKind::Expired => format!(
                "{code} in `{probe}` was accepted until {expires} ({reason}); that is over: fix it, or \
                 give it another date"
            ),
            NoticeKind::Unused => {
                format!("{code} in `{probe}` was not found; remove the entry, it accepts nothing")
            }
        };
        Notice { kind, file: self.file.clone(), line: *line, message }
    }
}

#[cfg(test)]
mod tests;
