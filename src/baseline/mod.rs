//! The baseline: findings that are known, accepted for a reason, and until a day.
//!
//! [`Baseline::apply`] marks what is accepted in the cases of a suite. An accepted finding is still
//! shown; an entry that is out of date accepts nothing, and one that is of no use is reported, so that
//! the file does not outlive what it was written for.

mod read;
mod write;

use glob::Pattern;
use toml::value::Date;

use crate::report::suite::{Acceptance, Case, CaseFinding, Notice, NoticeKind, Status};

pub use read::{BaselineFile, day};
pub use write::entries;

/// Where a baseline is looked for if nobody names one.
pub const FILE: &str = "zprobe-baseline.toml";

/// What is accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Its file.
    file: String,
    entries: Vec<Entry>,
}

/// A finding that is accepted.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// Line of the entry, from 1.
    line: usize,
    /// The rule's code.
    code: String,
    /// Probes, by name or with the engine before it: `stage1-*`, `deepspeed/*`.
    probe: Pattern,
    /// Only on this rank.
    rank: Option<usize>,
    /// Only about this parameter.
    param: Option<String>,
    /// Why it is accepted.
    reason: String,
    /// Last day on which it is.
    expires: Date,
}

impl Entry {
    fn is_about(&self, case: &Case) -> bool {
        self.probe.matches(&case.id()) || self.probe.matches(&case.probe)
    }

    fn matches(&self, it: &CaseFinding) -> bool {
        let finding = &it.finding;
        self.code == finding.code
            && (self.rank.is_none() || self.rank == finding.rank)
            && (self.param.is_none() || self.param == finding.param)
    }
}

impl Baseline {
    /// Marks what is accepted on the day `today`, and says which entries have expired or accept
    /// nothing. An entry is only said to be of no use if something that it is about has run, or if
    /// `whole`, the suite was not narrowed down, and there is nothing that it is about.
    pub fn apply(&self, cases: &mut [Case], today: Date, whole: bool) -> Vec<Notice> {
        let mut notices = Vec::new();
        for entry in &self.entries {
            let mut used = false;
            let expired = entry.expires < today;
            for case in cases.iter_mut().filter(|case| entry.is_about(case)) {
                let code = &case.expected;
                for it in &mut case.findings {
                    // What a probe expects needs no excuse.
                    if !entry.matches(it) || *code == it.finding.code {
                        continue;
                    }
                    used = true;
                    if !expired {
                        it.accepted = Some(Acceptance {
                            reason: entry.reason.clone(),
                            expires: entry.expires.to_string(),
                        });
                    }
                }
            }
            let about = || cases.iter().filter(|case| entry.is_about(case));
            if used && expired {
                notices.push(self.notice(NoticeKind::Expired, entry));
            } else if !used
                && (about().any(Case::run_was_made) || (whole && about().next().is_none()))
            {
                notices.push(self.notice(NoticeKind::Unused, entry));
            }
        }
        for case in cases {
            let fails = matches!(case.status, Status::Failed | Status::Crashed);
            let all = case.findings.iter().all(|it| it.accepted.is_some());
            if fails && all && !case.findings.is_empty() && case.expected == "clean" {
                case.status = Status::Accepted;
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
