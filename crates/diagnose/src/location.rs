//! The line of a user's script that a finding is about.

use std::collections::BTreeSet;

use crate::case::Case;
use zprobe_report::{Family, Finding, Location};

/// Returns the first line of the script that the message or the evidence of a finding names. If neither names a line,
/// returns the first line that steps (for a finding about the update) or that calls backward. `None` without a script,
/// or if no line was seen.
pub fn of(case: &Case<'_>, finding: &Finding) -> Option<Location> {
    case.observed.spec.script()?;
    let known = lines(case);
    let said = [&finding.message].into_iter().chain(&finding.evidence);
    let named = || {
        let words = said.flat_map(|text| text.split([' ', ',', ';', '(', ')']));
        words.map(|word| word.trim_end_matches(':')).find(|word| known.contains(*word))
    };
    let mut remarks = case.observed.script.remarks.values();
    let usual = match finding.code.family() {
        Family::Run => None,
        Family::Update => remarks.find_map(|it| it.step_at.first()),
        _ => remarks.find_map(|it| it.backward_at.first()),
    };
    let (file, line) = named().or(usual.map(String::as_str))?.rsplit_once(':')?;
    Some(Location { file: file.to_owned(), line: line.parse().ok()? })
}

/// All lines of the script that its ranks named, as `file:line`.
fn lines(case: &Case<'_>) -> BTreeSet<String> {
    let observed = &case.observed;
    let losses = observed.script.losses.values().flatten();
    let constants = losses.clone().flat_map(|it| &it.terms).flat_map(|it| &it.constants);
    let clipped = observed.updates.clipped.values().flatten().map(|it| &it.at);
    let in_vain = observed.updates.in_vain.values().flatten().map(|it| &it.at);
    let blocks = observed.script.unreached.values().copied().flatten().map(|it| &it.read);
    let places = losses.map(|it| &it.at).chain(constants.map(|it| &it.at)).chain(clipped);
    let places = places.chain(in_vain).chain(blocks).flatten().cloned();
    let remarks = observed.script.remarks.values();
    let remarks = remarks.flat_map(|it| it.backward_at.iter().chain(&it.step_at)).cloned();
    let frames =
        observed.processes.ranks.iter().flat_map(|it| it.stacks.values().copied().flatten());
    let frames = frames.filter(|it| it.is_own).map(|it| format!("{}:{}", it.file, it.line));
    places.chain(remarks).chain(frames).collect()
}
