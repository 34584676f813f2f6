//! Limits of installed engines: runs that need a feature which the installed release may lack.

use super::PythonFacts;
use zprobe_engines::{self as engines, EnginePackage};
use zprobe_model::spec::RunSpec;

/// Features of a release that a run needs.
struct Needed {
    /// The package whose releases have or lack the features.
    package: EnginePackage,
    /// The name of the fact that lists the features of the installed release.
    fact: &'static str,
    /// The features, each with the flag that asks for it.
    features: Vec<(String, String)>,
}

/// The names of the facts in [`PythonFacts::about_engines`] that decide whether a run can be made; empty if the run
/// needs no special feature.
pub fn questions(spec: &RunSpec) -> Vec<&'static str> {
    needed(spec).map_or_else(Vec::new, |needed| vec![needed.package.module, needed.fact])
}

/// The reason why a run cannot be made here, with advice: the first feature that the run needs and that the installed
/// engine lacks. `None` if no obstacle is known.
pub fn refusal(python: &PythonFacts, spec: &RunSpec) -> Option<String> {
    let Needed { package, fact, features } = needed(spec)?;
    let has = python.fact(fact).value()?.as_array()?;
    let lacks = |(feature, _): &(String, String)| !has.iter().any(|it| it == feature);
    let (feature, flag) = features.into_iter().find(lacks)?;
    let version = python.version(&package);
    let release = version.value().map_or_else(String::new, |it| format!(" {it}"));
    let title = package.title;
    Some(format!(
        "{title}{release} has no {feature}; leave out {flag}, or use a release that has it"
    ))
}

/// The special features that a run needs; `None` if the run needs none.
fn needed(spec: &RunSpec) -> Option<Needed> {
    let engine = engines::of(spec.engine()).python.as_ref()?;
    let (package, released) = (engine.packages().last()?, engine.features.as_ref()?);
    let features = (released.needed)(spec);
    (!features.is_empty()).then_some(Needed { package, fact: released.fact, features })
}
