//! Two runs side by side: the findings that only one of them has, and the gaps between their
//! numbers.
//!
//! Verdicts, findings and contribution weights are either equal or not. Losses, norms and parameters contain rounding
//! errors, so that gaps between them are reported but not judged. Only two runs with the same settings and the same
//! software must be equal to the last bit.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gaps::{Gap, NormGap, norm_gaps, parameter_gaps};
use super::side::Side;
use zprobe_model::trace::Point;
use zprobe_report::words::matrix_text;
use zprobe_report::{Contribution, Exit, Report, Schema, Verdict};

/// A comparison of two runs, as `zprobe compare --output-format json` prints it. Its JSON Schema is checked in as
/// `schema/compare.v1.schema.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The version of this format.
    pub schema: Schema,
    /// The names of the two runs.
    pub names: Pair<String>,
    /// True if the runs differ in nothing that can be judged.
    pub same: bool,
    /// The verdicts on the two runs.
    pub verdicts: Pair<Verdict>,
    /// The codes of the findings of both runs.
    pub findings: ComparedFindings,
    /// The settings that differ, named as in the specification.
    pub settings: Vec<SettingDifference>,
    /// The packages whose versions differ.
    pub versions: Vec<SettingDifference>,
    /// The contribution weights that differ; empty where the runs do not have the same gradients.
    pub weights: Vec<ComparedWeights>,
    /// True if the weights were compared, because both runs have the same gradients.
    pub weights_compared: bool,
    /// The loss and the gradient norm of each step, and the gap between the parameters after the step.
    pub steps: Vec<ComparedStep>,
    /// The gaps between norms of buffers, by point of the gradient's journey; empty where the runs do not split their
    /// batches alike.
    pub norms: Vec<NormGap>,
}

/// A value of the first run and the same value of the second run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pair<T> {
    /// The value of the first run.
    pub a: T,
    /// The value of the second run.
    pub b: T,
}

/// The codes of the findings of two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFindings {
    /// The codes that both runs have.
    pub both: Vec<String>,
    /// The codes that only the first run has.
    pub only_a: Vec<String>,
    /// The codes that only the second run has.
    pub only_b: Vec<String>,
}

/// A setting or a version that differs; the value is `None` for a run that does not have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingDifference {
    /// The name of the setting or of the package.
    pub name: String,
    /// The value in the first run.
    pub a: Option<String>,
    /// The value in the second run.
    pub b: Option<String>,
}

/// The contribution weights of a buffer that differ between the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedWeights {
    /// The point of the gradient's journey.
    pub point: Point,
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The rank that holds the buffer.
    pub rank: usize,
    /// The names of the parameters that the weights are about; `None` for all parameters that no other entry of the
    /// same buffer names.
    pub params: Option<Vec<String>>,
    /// The weights in the first run, as [`Contribution::weights`]; `None` if the first run has no such entry.
    pub a: Option<Vec<Vec<f64>>>,
    /// The weights in the second run; `None` if the second run has no such entry.
    pub b: Option<Vec<Vec<f64>>>,
}

/// The numbers of a step that both runs have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedStep {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The mean loss of the step.
    pub loss: Pair<Option<f64>>,
    /// The global norm of the gradient: as the engines computed it if both engines did, else of the inner optimizers'
    /// input.
    pub gradient_norm: Pair<Option<f64>>,
    /// The gap between the parameters of rank 0 after the step; `None` unless both runs recorded them in the same
    /// shapes.
    pub parameters: Option<Gap>,
}

impl Comparison {
    /// Compares two runs.
    pub fn new(a: &Side, b: &Side) -> Self {
        let (one, two) = (&a.report, &b.report);
        let settings = settings(one, two);
        let versions = differences(&one.run.versions, &two.run.versions);
        let findings = findings(one, two);
        let comparable = one.run.spec.world_size == two.run.spec.world_size
            && one.run.spec.gradient_accumulation_steps == two.run.spec.gradient_accumulation_steps;
        let weights = if comparable { weights(one, two) } else { Vec::new() };
        let steps = steps(a, b);
        // With another microbatch size, accumulators hold gradients of other samples.
        let same_split = one.run.spec.micro_batch_size == two.run.spec.micro_batch_size;
        let norms = if comparable && same_split { norm_gaps(one, two) } else { Vec::new() };
        let must_be_equal = settings.is_empty() && versions.is_empty();
        let equal =
            steps.iter().all(ComparedStep::is_equal) && norms.iter().all(|gap| gap.differing == 0);
        Self {
            schema: Schema::CURRENT,
            names: Pair { a: a.name.clone(), b: b.name.clone() },
            same: one.verdict == two.verdict
                && findings.only_a.is_empty()
                && findings.only_b.is_empty()
                && weights.is_empty()
                && (equal || !must_be_equal),
            verdicts: Pair { a: one.verdict, b: two.verdict },
            findings,
            settings,
            versions,
            weights,
            weights_compared: comparable,
            steps,
            norms,
        }
    }

    /// The exit code: a crash of either run counts most, then a difference, then an inconclusive run.
    pub fn exit(&self) -> Exit {
        let either = |verdict| self.verdicts.a == verdict || self.verdicts.b == verdict;
        match self.same {
            _ if either(Verdict::Crashed) => Exit::Crashed,
            false => Exit::Findings,
            true if either(Verdict::Inconclusive) => Exit::Inconclusive,
            true => Exit::Clean,
        }
    }

    /// True if the runs have the same settings and software, so that every bit must be equal.
    pub fn must_be_equal(&self) -> bool {
        self.settings.is_empty() && self.versions.is_empty()
    }
}

impl ComparedStep {
    /// True if no number of the step differs.
    fn is_equal(&self) -> bool {
        self.loss.a == self.loss.b
            && self.gradient_norm.a == self.gradient_norm.b
            && self.parameters.is_none_or(|gap| gap.differing == 0)
    }

    /// The absolute difference of the two losses.
    pub fn loss_gap(&self) -> Option<f64> {
        Some((self.loss.a? - self.loss.b?).abs())
    }

    /// The absolute difference of the norms, in percent of the first; `None` where the first norm is 0 or a norm is
    /// missing.
    pub fn norm_gap_percent(&self) -> Option<f64> {
        let (a, b) = (self.gradient_norm.a?, self.gradient_norm.b?);
        (a != 0.0).then(|| 100.0 * (a - b).abs() / a.abs())
    }
}

fn findings(a: &Report, b: &Report) -> ComparedFindings {
    let codes = |report: &Report| -> BTreeSet<String> {
        report.findings.iter().map(|finding| finding.code.to_string()).collect()
    };
    let (a, b) = (codes(a), codes(b));
    ComparedFindings {
        both: a.intersection(&b).cloned().collect(),
        only_a: a.difference(&b).cloned().collect(),
        only_b: b.difference(&a).cloned().collect(),
    }
}

/// The settings that differ. The time limit is left out, because it does not change the run itself.
fn settings(a: &Report, b: &Report) -> Vec<SettingDifference> {
    let flat = |report: &Report| {
        let mut all = BTreeMap::new();
        flatten("", &serde_json::to_value(&report.run.spec).unwrap_or_default(), &mut all);
        all.remove("timeout_s");
        all
    };
    differences(&flat(a), &flat(b))
}

/// Collects the values of a JSON tree by their paths.
fn flatten(path: &str, value: &serde_json::Value, into: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, member, into);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(text) => drop(into.insert(path.to_owned(), text.clone())),
        other => drop(into.insert(path.to_owned(), other.to_string())),
    }
}

fn differences(
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
) -> Vec<SettingDifference> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let difference = |name: &String| SettingDifference {
        name: name.clone(),
        a: a.get(name).cloned(),
        b: b.get(name).cloned(),
    };
    let differs = |it: &SettingDifference| it.a != it.b;
    names.into_iter().map(difference).filter(differs).collect()
}

/// The key of a contribution entry: step, microbatch, point, rank and parameters.
type WeightsKey = (usize, Option<usize>, Point, usize, Option<Vec<String>>);

fn place(entry: &Contribution) -> WeightsKey {
    (entry.step, entry.microbatch, entry.point, entry.rank, entry.params.clone())
}

fn weights(a: &Report, b: &Report) -> Vec<ComparedWeights> {
    let by_place = |report: &Report| -> BTreeMap<WeightsKey, Contribution> {
        report.contributions.iter().map(|entry| (place(entry), entry.clone())).collect()
    };
    let (a, b) = (by_place(a), by_place(b));
    let mut places: Vec<&WeightsKey> =
        a.keys().chain(b.keys()).collect::<BTreeSet<_>>().into_iter().collect();
    // Entries without a microbatch come after those with one.
    places.sort_by_key(|(step, microbatch, ..)| (*step, microbatch.unwrap_or(usize::MAX)));
    let pairs = places.into_iter().map(|place| (place, a.get(place), b.get(place)));
    pairs
        .filter(|(_, a, b)| match (a, b) {
            (Some(a), Some(b)) => apart(a, b),
            // An entry that only one run has may be one that the other could not read: it is a
            // difference only if it is not as planned.
            (Some(only), None) | (None, Some(only)) => !only.as_planned,
            (None, None) => false,
        })
        .map(|(place, a, b)| {
            let (step, microbatch, point, rank, params) = place.clone();
            let weights = |entry: Option<&Contribution>| entry.map(|entry| entry.weights.clone());
            ComparedWeights { point, step, microbatch, rank, params, a: weights(a), b: weights(b) }
        })
        .collect()
}

/// True if the weights of two entries differ by more than the sum of their error bounds.
fn apart(a: &Contribution, b: &Contribution) -> bool {
    let all = |entry: &Contribution| -> Vec<f64> {
        entry.weights.iter().chain(&entry.leftover).flatten().copied().collect()
    };
    let (ours, theirs) = (all(a), all(b));
    let bound = a.tolerance + b.tolerance;
    ours.len() != theirs.len() || ours.iter().zip(&theirs).any(|(a, b)| (a - b).abs() > bound)
}

impl ComparedWeights {
    /// The weights of both runs as text.
    pub fn words(&self) -> Pair<String> {
        let words = |weights: &Option<Vec<Vec<f64>>>| {
            weights.as_deref().map_or("not read".to_owned(), matrix_text)
        };
        Pair { a: words(&self.a), b: words(&self.b) }
    }
}

fn steps(a: &Side, b: &Side) -> Vec<ComparedStep> {
    let gaps = parameter_gaps(a.trace.as_ref(), b.trace.as_ref());
    let (ours, theirs) = (&a.report.steps, &b.report.steps);
    let both_say = ours
        .iter()
        .zip(theirs)
        .all(|(a, b)| a.gradient_norm.is_some() == b.gradient_norm.is_some());
    let norm = |step: &zprobe_report::Step| {
        if both_say { step.gradient_norm.or(step.input_norm) } else { step.input_norm }
    };
    let pair = |(a, b): (&zprobe_report::Step, &zprobe_report::Step)| ComparedStep {
        step: a.step,
        loss: Pair { a: a.loss, b: b.loss },
        gradient_norm: Pair { a: norm(a), b: norm(b) },
        parameters: gaps.get(&a.step).copied(),
    };
    ours.iter().zip(theirs).map(pair).collect()
}
