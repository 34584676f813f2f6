//! Recognises findings that are known bugs of the zoo.
//!
//! A finding is a known bug if all of the following fit: the rule that saw the finding (or the engine's own words),
//! the versions that really ran, the optimizer that the engine really chose, and the settings.

use std::collections::BTreeMap;

use pep440_rs::{Version, VersionSpecifiers};
use serde::Deserialize;
use serde_json::Value;

use super::judge::words;
use super::{Expectation, Packages, ZooRow, registry};
use zprobe_model::spec::{Dtype, Offload, RunSpec};
use zprobe_report::{Finding, KnownBug, Report, RuleCode, Verdict};

/// The name of the fact that lists the trainers and engines of a user's script.
pub const TRAINERS: &str = "trainers";

/// The fields of the specification that DeepSpeed reports in a user's script, each with the name of the fact.
const REPORTED: [(&str, &str); 3] = [
    ("stage", "zero_optimization_stage"),
    ("grad_accum_dtype", "grad_acc_dtype"),
    ("offload", "cpu_offload"),
];

/// The value of a field that the engine of a script has not reported.
const NOT_REPORTED: &str = "not reported";

/// The text in [`BugConditions::when`] for a value that is left to the engine.
const UNSET: &str = "unset";

/// The conditions that a run must meet for one of its findings to be this bug.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BugConditions {
    /// The versions that have the bug, by package; all packages must fit. An empty specifier means every version.
    pub affected: BTreeMap<String, VersionSpecifiers>,
    /// The first release without the bug; `None` if all releases have the bug.
    #[serde(default)]
    pub fixed: Option<Version>,
    /// The class that wraps the inner optimizer, if the bug is in such a class.
    #[serde(default)]
    pub optimizer_class: Option<String>,
    /// The values that fields of the [`RunSpec`] may have, by the dotted paths of the fields in
    /// `report.json`. A list must hold one of the values, and if that value is itself a list, all its elements;
    /// `"unset"` stands for null.
    #[serde(default)]
    pub when: BTreeMap<String, Vec<Value>>,
    /// The codes of other findings that the bug leads to, for example in later steps. They count as this bug if the
    /// bug itself shows in the same run.
    #[serde(default)]
    pub wake: Vec<RuleCode>,
    /// The name of the trainer or engine that a user's script must have: `transformers.Trainer`.
    #[serde(default)]
    pub trainer: Option<String>,
    /// A part of the finding's message, needed where the code does not identify the bug.
    #[serde(default)]
    pub says: Option<String>,
    /// True if only CPU ranks have the bug. Then the bug is a limit of CPU ranks, and says nothing about GPUs.
    #[serde(default)]
    pub cpu_only: bool,
}

/// The parts of engines' messages by which crashes are recognised, of all rows of the program.
pub fn phrases() -> impl Iterator<Item = &'static str> {
    let releases = registry::rows().iter().flat_map(|row| &row.releases);
    releases.filter_map(|release| match &release.expect {
        Expectation::Crash { message, .. } => Some(message.as_str()),
        _ => None,
    })
}

/// Returns true if a run with these settings and these packages may show a known bug.
pub fn may_show_known_bug(spec: &RunSpec, packages: &Packages) -> bool {
    // A specification that is no JSON object fits no conditions.
    let settings = serde_json::to_value(spec).unwrap_or_default();
    let rows = registry::rows().iter().filter(|row| row.engine == spec.engine());
    rows.filter_map(|row| row.known.as_ref()).any(|known| {
        let has = |(package, versions): (&String, &VersionSpecifiers)| {
            packages.version(package).is_some_and(|version| versions.contains(version))
        };
        known.affected.iter().all(has) && !known.when.is_empty() && known.has_settings(&settings)
    })
}

/// Adds the known bugs to every finding of a report that is one of them.
pub fn name_known_bugs(report: &mut Report) {
    if report.findings.is_empty() {
        return;
    }
    let Some(spec) = specification(report) else { return };
    let named: Vec<Vec<&ZooRow>> = report
        .findings
        .iter()
        .map(|finding| {
            let rows = registry::rows().iter();
            rows.filter(|row| row.is_known_in(report, &spec, finding)).collect()
        })
        .collect();
    for (finding, rows) in report.findings.iter_mut().zip(named) {
        finding.known = rows.iter().filter_map(|row| row.known_bug()).collect();
        let cpu_only = |row: &&ZooRow| row.known.as_ref().is_some_and(|known| known.cpu_only);
        if let (Some(row), true) = (rows.first(), rows.iter().all(cpu_only)) {
            finding.limit.get_or_insert_with(|| row.title.clone());
        }
    }
}

/// The specification of a run as JSON, with the settings that the engine of a user's script has reported.
fn specification(report: &Report) -> Option<Value> {
    let mut spec = serde_json::to_value(&report.run.spec).ok()?;
    if report.run.spec.script().is_some() {
        for (field, fact) in REPORTED {
            let reported = report.run.engine_facts.get(fact);
            spec[field] = reported
                .map_or_else(|| Value::from(NOT_REPORTED), |text| reported_value(field, text));
        }
    }
    Some(spec)
}

/// The value of a field that an engine has reported: `1`, `torch.float32`, or `True` for offload to the CPU.
fn reported_value(field: &str, text: &str) -> Value {
    let name = match (field, text) {
        ("offload", "True") => Some(Offload::Cpu.name()),
        ("offload", "False") => Some(Offload::None.name()),
        (_, "torch.bfloat16") => Some(Dtype::Bf16.name()),
        (_, "torch.float16") => Some(Dtype::Fp16.name()),
        (_, "torch.float32") => Some(Dtype::Fp32.name()),
        _ => None,
    };
    let name = name.map(Value::from);
    name.or_else(|| serde_json::from_str(text).ok()).unwrap_or_else(|| Value::from(NOT_REPORTED))
}

impl ZooRow {
    /// Returns true if a finding is the bug of this row.
    fn is_known_in(&self, report: &Report, spec: &Value, finding: &Finding) -> bool {
        let Some(known) = self.known.as_ref().filter(|known| known.fits(report, spec)) else {
            return false;
        };
        let shows = |finding: &Finding| {
            self.releases.iter().any(|release| release.expect.is_shown_by(report, finding))
        };
        let is_in_wake = || known.wake.contains(&finding.code) && report.findings.iter().any(shows);
        // The class that wraps the optimizer and the reported settings show the engine of a script.
        let is_reported = |field: &String| REPORTED.iter().any(|(it, _)| it == field);
        let is_of_script = report.run.spec.script().is_some()
            && (known.optimizer_class.is_some() || known.when.keys().any(is_reported))
            && known.when.keys().all(|field| field == "dtype" || is_reported(field));
        let is_engine = self.engine == report.run.spec.engine() || is_of_script;
        let has_message = known.says.as_ref().is_none_or(|part| finding.message.contains(part));
        is_engine && has_message && (shows(finding) || is_in_wake())
    }

    /// The description of the bug for a report; `None` if the row does not say when a finding is this bug.
    pub fn known_bug(&self) -> Option<KnownBug> {
        let known = self.known.as_ref()?;
        let package = known.fixed.as_ref().and_then(|fixed| known.package_of(fixed));
        let release = package.as_ref().zip(known.fixed.as_ref());
        Some(KnownBug {
            name: self.name.clone(),
            title: self.title.clone(),
            links: self.links.clone(),
            affected: known.affected_text(),
            fixed: known.fixed.as_ref().map(Version::to_string),
            cause: self.cause.clone(),
            workaround: self.workaround.clone(),
            summary: self.summary.split_whitespace().collect::<Vec<_>>().join(" "),
            upgrade: release
                .map(|(package, release)| format!("pip install '{package}>={release}'")),
            package,
        })
    }
}

impl BugConditions {
    /// Returns true if the versions, the optimizer and the settings of a run are those that the bug needs.
    fn fits(&self, report: &Report, spec: &Value) -> bool {
        let is_affected = |(package, versions): (&String, &VersionSpecifiers)| {
            let version = report.run.versions.get(package).and_then(|text| text.parse().ok());
            version.is_some_and(|version: Version| versions.contains(&version))
        };
        let class = report.run.optimizer_class.as_deref();
        let trainers = report.run.engine_facts.get(TRAINERS).map_or("", String::as_str);
        let has_trainer = |name: &String| trainers.split(", ").any(|it| it == name);
        self.trainer.as_ref().is_none_or(has_trainer)
            && self.affected.iter().all(is_affected)
            && (self.optimizer_class.is_none() || self.optimizer_class.as_deref() == class)
            && self.has_settings(spec)
    }

    /// Returns true if the settings are those that the bug needs.
    fn has_settings(&self, spec: &Value) -> bool {
        self.when.iter().all(|(field, values)| is_one_of(at(spec, field), values))
    }

    /// The package in which the release `fixed` is the first without the bug: the package that does not have the bug
    /// in that version.
    fn package_of(&self, fixed: &Version) -> Option<String> {
        let mut others = self.affected.iter().filter(|(_, versions)| !versions.contains(fixed));
        others.next().map(|(package, _)| package.clone())
    }

    /// The affected versions for people: `deepspeed >=0.18.5, <0.19.0`; `every release of torch`.
    pub(super) fn affected_text(&self) -> String {
        let parts = self.affected.iter().map(|(package, versions)| {
            if versions.is_empty() {
                format!("every release of {package}")
            } else {
                format!("{package} {versions}")
            }
        });
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// The field of a specification at a dotted path.
fn at<'s>(spec: &'s Value, path: &str) -> &'s Value {
    path.split('.').fold(spec, |value, field| &value[field])
}

/// Returns true if a field has one of these values, or is a list that holds one of them. For a value that is itself a
/// list, the field must hold all its elements.
fn is_one_of(field: &Value, values: &[Value]) -> bool {
    match field {
        Value::Null => values.iter().any(|value| value == UNSET),
        Value::Array(held) => values.iter().any(|value| match value {
            Value::Array(all) => all.iter().all(|value| held.contains(value)),
            value => held.contains(value),
        }),
        field => values.contains(field),
    }
}

impl Expectation {
    /// Returns true if a finding is the one that this expectation describes.
    fn is_shown_by(&self, report: &Report, finding: &Finding) -> bool {
        match self {
            Self::Clean => false,
            Self::Finding(code) => finding.code == *code,
            // Where the engine did not crash, only the rule decides.
            Self::Crash { finding: Some(code), .. } if report.verdict != Verdict::Crashed => {
                finding.code == *code
            }
            Self::Crash { message, finding: Some(code) } => {
                finding.code == *code && words(report).any(|text| text.contains(message.as_str()))
            }
            Self::Crash { message, finding: None } => {
                let consequences = finding.consequences.iter().map(|known| &known.message);
                let texts = [&finding.message].into_iter().chain(&finding.evidence);
                texts.chain(consequences).any(|text| text.contains(message.as_str()))
            }
        }
    }
}
