//! ZP904: the digest of a buffer differs between the process group and the event channel, or the digest or norm of a
//! buffer is not that of its elements.

use std::collections::{BTreeSet, HashSet};

use crate::case::Case;
use crate::observed::Buffer;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::trace::{Payload, digest};
use zprobe_report::RuleCode;
use zprobe_report::words::counted;

/// The relative error of a norm that a rank computed, far above the rounding errors of fp32.
const NORM_ERROR: f64 = 1e-5;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP904"),
    name: "digests-disagree",
    crash: false,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../docs/ZP904.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let mut differing: Vec<(usize, usize)> = Vec::new();
    let mut seen: HashSet<(usize, *const String)> = HashSet::new();
    // Most ranks gathered the same list, which the trace stores once.
    let lists =
        observed.exchanges.gathered.iter().filter(|it| seen.insert((it.step, it.in_band.as_ptr())));
    for gathered in lists {
        for (source, in_band) in gathered.in_band.iter().enumerate() {
            let out_of_band = observed.exchanges.out_of_band.get(&(source, gathered.step));
            let key = (gathered.step, source);
            if out_of_band.is_some_and(|digest| digest != in_band) && !differing.contains(&key) {
                differing.push(key);
            }
        }
    }
    let is_sampled =
        |buffer: &Buffer<'_>| observed.model.samples.contains_key(&(buffer.rank, buffer.layout));
    let (mut damaged, mut misjudged) = (Vec::new(), Vec::new());
    for buffer in observed.buffers.all.iter().filter(|it| it.payload.has_content()) {
        let place = (buffer.step.unwrap_or(0), buffer.rank);
        match buffer.payload.bytes() {
            Ok(bytes) if digest(&bytes) == buffer.payload.digest => {
                if !has_possible_norm(buffer.payload, &bytes, is_sampled(buffer)) {
                    misjudged.push(place);
                }
            }
            _ => damaged.push(place),
        }
    }
    let carried =
        "sent digests over the process group that differ from the digests of the recorded buffers";
    let broken = "recorded buffers that do not match their own digests";
    let wrong = "reported norms that are not the norms of the recorded buffers";
    [(differing, carried), (damaged, broken), (misjudged, wrong)]
        .into_iter()
        .filter_map(|(seen, what)| {
            seen.first()?;
            let ranks: BTreeSet<usize> = seen.iter().map(|&(_, rank)| rank).collect();
            let steps: BTreeSet<usize> = seen.iter().map(|&(step, _)| step).collect();
            let listed = |numbers: &BTreeSet<usize>| numbers.iter().copied().collect::<Vec<_>>();
            let mut finding = rule.finding(format!("{} {what}", counted("rank", &listed(&ranks))));
            finding.evidence.push(format!("seen in {}", counted("step", &listed(&steps))));
            let (steps, holders) = (Extent::Only(steps), Extent::Only(ranks));
            Some(Sighting::new(finding, Scope { steps, holders, ..Scope::default() }))
        })
        .collect()
}

/// True if the norm that a rank reported for a buffer fits the recorded elements: the norm of a whole buffer is that of
/// the elements, and the norm of a buffer with only samples recorded is at least that of the samples.
fn has_possible_norm(payload: &Payload, bytes: &[u8], is_sampled: bool) -> bool {
    let squares = payload.values_of(bytes).into_iter().map(|value| value * value);
    let right = squares.sum::<f64>().sqrt();
    match payload.norm {
        None => is_sampled || !right.is_finite(),
        Some(norm) if is_sampled => right <= norm * (1.0 + NORM_ERROR),
        Some(norm) => (norm - right).abs() <= NORM_ERROR * right,
    }
}
