//! Writes baseline entries for the findings of a suite.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use toml::Value;

use zprobe_report::suite::Case;

/// The `[[accept]]` entries for all findings of bad cases that are not accepted already, as text
/// for the end of a file; empty if there are none.
///
/// The entries name no ranks and no parameters, because those of a finding may differ from run to run.
pub fn entries(cases: &[Case], reason: &str, expires: &str) -> String {
    let mut known = BTreeSet::new();
    let mut text = String::new();
    for case in cases.iter().filter(|case| case.status.is_bad()) {
        for it in case.findings.iter().filter(|it| it.accepted.is_none()) {
            let id = glob::Pattern::escape(&case.id());
            if !known.insert((id.clone(), it.finding.code)) {
                continue;
            }
            let quoted = |text: &str| Value::String(text.to_owned()).to_string();
            let _ = write!(
                text,
                "\n[[accept]]\ncode = {}\nprobe = {}\nreason = {}\nexpires = {expires}\n",
                quoted(&it.finding.code),
                quoted(&id),
                quoted(reason),
            );
        }
    }
    text
}
