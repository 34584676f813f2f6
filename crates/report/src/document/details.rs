//! The sections that list facts: the smallest configuration, the engine's statements about itself, the power of the
//! run, its software and its specification.

use serde_json::Value;

use super::{Block, Fact, Section, TextSpan, Topic};
use crate::Report;
use crate::words::amount;
use zprobe_model::spec::RunSpec;

/// The section about the smallest configuration that shows a finding, with the trials of the search.
pub(super) fn smallest(report: &Report) -> Option<Section<'_>> {
    let smallest = report.minimised.as_ref()?;
    let trials = smallest.trials.iter().map(|trial| {
        let label = if trial.kept { "finding remains" } else { "finding gone" };
        Fact::new(label, format!("{}: {}", trial.change, trial.said))
    });
    let runs = amount(smallest.trials.len(), "run");
    let end = if smallest.complete {
        format!("{runs}; no single further reduction keeps the finding")
    } else {
        format!("{runs}, which is the limit; --minimise-runs allows more")
    };
    let facts = trials.chain([Fact::new("", end)]).collect();
    let title = format!("Smallest configuration that shows {}", smallest.code);
    let blocks = vec![Block::Command(smallest.command.clone()), Block::Facts(facts)];
    Some(Section::new(Topic::Smallest, title, blocks))
}

/// The names of the facts about a script that the lines about its settings already state.
const OF_SCRIPT: [&str; 4] = ["contract", "factor of all gradients", "judged", "places"];

/// The settings in the specification of a script's training that are facts. All others are those of zprobe's own model,
/// which a script does not have.
const FACTS_OF_SCRIPT: [&str; 11] = [
    "backend",
    "device",
    "dtype",
    "engine",
    "gradient_accumulation_steps",
    "recording",
    "script",
    "seed",
    "steps",
    "timeout_s",
    "world_size",
];

/// The section with the facts that the engine states about itself.
pub(super) fn engine(report: &Report) -> Option<Section<'_>> {
    let mut facts: Vec<_> = report.run.engine_facts.clone().into_iter().collect();
    facts.retain(|(name, _)| !OF_SCRIPT.contains(&name.as_str()));
    let title = "What the engine says about itself";
    (!facts.is_empty()).then(|| Section::new(Topic::Engine, title, vec![Block::Pairs(facts)]))
}

/// The section about the smallest deviation that the run could have detected, and the parts of training that it did not
/// exercise.
pub(super) fn power(report: &Report) -> Section<'_> {
    let mut facts = vec![Fact::new("smallest deviation", &report.power.statement)];
    let sums = report.precision.iter().map(|it| TextSpan::Text(it.describe()));
    let missing = report.not_exercised.iter().cloned().map(TextSpan::Text);
    facts.extend([Fact::each("sums", sums), Fact::each("not exercised", missing)]);
    facts.retain(|fact| !fact.said.is_empty());
    Section::new(Topic::Power, "What this run could have seen", vec![Block::Facts(facts)])
}

/// The section with the versions of the software, the end of the recording, and the method by which weights were read.
pub(super) fn run(report: &Report) -> Section<'_> {
    let run = &report.run;
    let mut pairs: Vec<(String, String)> = run.versions.clone().into_iter().collect();
    let mut pair = |name: &str, value: Option<String>| {
        pairs.extend(value.map(|value| (name.to_owned(), value)));
    };
    pair("optimizer", run.optimizer_class.clone());
    pair("inner optimizer", run.inner_optimizer.clone());
    pair("recording", Some(run.ending.to_string()));
    pair("weights read by", Some(report.power.method.to_string()));
    pair("condition number", report.power.condition.map(|condition| condition.to_string()));
    Section::detail(Topic::Run, "Software", vec![Block::Pairs(pairs)])
}

/// The section with the specification of the run as a flat list: each setting by its path.
pub(super) fn specification(spec: &RunSpec) -> serde_json::Result<Section<'_>> {
    let (mut pairs, mut settings) = (Vec::new(), serde_json::to_value(spec)?);
    if let (Some(_), Some(settings)) = (spec.script(), settings.as_object_mut()) {
        settings.retain(|name, _| FACTS_OF_SCRIPT.contains(&name.as_str()));
    }
    flatten(String::new(), &settings, &mut pairs);
    Ok(Section::detail(Topic::Specification, "Specification", vec![Block::Pairs(pairs)]))
}

fn flatten(name: String, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Null => {}
        Value::Object(members) => {
            for (key, member) in members {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(format!("{name}{dot}{key}"), member, pairs);
            }
        }
        Value::String(text) => pairs.push((name, text.clone())),
        Value::Array(items) if items.is_empty() => {}
        other => pairs.push((name, other.to_string())),
    }
}
