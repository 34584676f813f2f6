//! The baseline: known findings that are accepted for a reason, and until a day.
//!
//! [`Baseline::accept`] marks the accepted findings of a case of a suite. An accepted finding is still shown. An
//! expired entry accepts nothing, and an unused entry is reported, so that the file does not outlive its purpose.

mod read;
mod write;

use glob::Pattern;
use toml::value::Date;

use zprobe_report::RuleCode;
use zprobe_report::suite::{Acceptance, Case, CaseFinding, Notice, NoticeKind, Status};

pub use read::{BaselineFile, day};
pub use write::entries;

/// The path of the baseline if the user names none.
pub const FILE: &str = "zprobe-baseline.toml";

/// The findings that a baseline file accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// The path of the baseline.
    file: String,
    entries: Vec<BaselineEntry>,
}

/// An entry of a baseline: a finding that is accepted.
#[derive(Clone, Debug, PartialEq)]
struct BaselineEntry {
    /// The line of the entry in its file, from 1.
    line: usize,
    /// The code of the finding's rule.
    code: RuleCode,
    /// The probes that the entry is about, by name or by engine and name: `stage1-*`, `deepspeed/*`.
    probe: Pattern,
    /// The rank that the finding must be on; `None` for any rank.
    rank: Option<usize>,
    /// The parameter that the finding must be about; `None` for any parameter.
    param: Option<String>,
    /// The reason why the finding is accepted.
    reason: String,
    /// The last day on which the finding is accepted.
    expires: Date,
}

impl BaselineEntry {
    fn is_about(&self, case: &Case) -> bool {
        self.probe.matches(&case.id()) || self.probe.matches(&case.probe)
    }

    /// The indices of the findings of a case that the entry is about. A finding that the probe expects is left out,
    /// because it needs no entry.
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

    /// The notices about entries that have expired by the day `today`, or accept nothing. An entry is reported as
    /// unused only if one of its cases has run, or if the suite was not narrowed down (`whole`) and has no case for
    /// it.
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

    fn notice(&self, kind: NoticeKind, entry: &BaselineEntry) -> Notice {
        let BaselineEntry { line, code, probe, reason, expires, .. } = entry;
        let message = match kind {
            NoticeKind::Expired => format!(
                "{code} in `{probe}` was accepted until {expires} ({reason}); the entry has expired: fix the bug, or \
                 give the entry another date"
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
