//! Limits of installed engines: runs that cannot be made on the CPU ranks of this machine.

use super::python::NOT_TRIED;
use super::{CheckState, DoctorCheck, PythonAttempt, PythonFacts};
use zprobe_engines::{self as engines, DtypeLimit, EnginePackage, ReleaseFeatures};
use zprobe_model::spec::{Device, RunSpec};

/// The checks of the engines' limits, such as fp16 on CPU ranks. A limit that the interpreter was not asked about has
/// no check.
pub fn limits(python: &PythonFacts) -> Vec<DoctorCheck> {
    let limits = engines::real().filter_map(|(_, engine)| limit(engine));
    limits.filter_map(|(package, limit)| check(python, package, limit)).collect()
}

/// The names of the facts in [`PythonFacts::about_engines`] that decide whether a run can be made; empty where neither a
/// limit nor a feature concerns the run.
pub fn questions(spec: &RunSpec) -> Vec<&'static str> {
    let of_dtype = concerning(spec)
        .map_or_else(Vec::new, |(package, limit)| vec![limit.on_cpu, package.module, limit.taken]);
    let of_features = features(spec).map_or_else(Vec::new, |(package, features)| {
        if (features.needed)(spec).is_empty() {
            Vec::new()
        } else {
            vec![package.module, features.fact]
        }
    });
    of_dtype.into_iter().chain(of_features).collect()
}

/// The reason why a run cannot be made here, with advice; `None` where no obstacle is known.
pub fn refusal(python: &PythonFacts, spec: &RunSpec) -> Option<String> {
    let of_dtype = || {
        let (package, limit) = concerning(spec)?;
        let check = check(python, package, limit).filter(|check| check.state != CheckState::Ok)?;
        let advice = check.advice.map(|advice| format!("; {advice}")).unwrap_or_default();
        Some(format!("{}{advice}", check.detail))
    };
    of_dtype().or_else(|| lacking(python, spec))
}

/// The message about the first feature that a run needs and the installed engine does not have.
fn lacking(python: &PythonFacts, spec: &RunSpec) -> Option<String> {
    let (package, features) = features(spec)?;
    let has = python.fact(features.fact).value()?.as_array()?;
    let needed = (features.needed)(spec);
    let (feature, flag) =
        needed.into_iter().find(|(feature, _)| !has.iter().any(|it| it == feature))?;
    let version = python.version(&package);
    let release = version.value().map_or_else(String::new, |it| format!(" {it}"));
    Some(format!(
        "{}{release} has no {feature}; leave out {flag}, or use a release that has it",
        package.title
    ))
}

/// The features that a run's engine may have or lack, and the package whose releases have them.
fn features(spec: &RunSpec) -> Option<(EnginePackage, &'static ReleaseFeatures)> {
    let engine = engines::of(spec.engine()).python.as_ref()?;
    Some((engine.packages().last()?, engine.features.as_ref()?))
}

/// The limit of a run's engine, if the run has the limit's dtype and CPU ranks.
fn concerning(spec: &RunSpec) -> Option<(EnginePackage, &'static DtypeLimit)> {
    limit(engines::of(spec.engine()).python.as_ref()?)
        .filter(|(_, limit)| limit.dtype == spec.dtype && spec.device == Device::Cpu)
}

/// The limit of an engine, and the package whose releases have the limit.
fn limit(engine: &'static engines::PythonSource) -> Option<(EnginePackage, &'static DtypeLimit)> {
    Some((engine.packages().last()?, engine.limit.as_ref()?))
}

/// The check that tells whether an engine accepts a dtype on CPU ranks; `None` where the engine could not be asked,
/// so that only a run can tell.
fn check(python: &PythonFacts, package: EnginePackage, limit: &DtypeLimit) -> Option<DoctorCheck> {
    let (title, DtypeLimit { subject, dtype, .. }) = (package.title, limit);
    let takes = python.fact(limit.taken).value()?.as_bool()?;
    let version = python.version(&package);
    let release = version.value().map_or_else(String::new, |it| format!(" {it}"));
    if takes {
        return Some(DoctorCheck::ok(
            subject,
            format!("{title}{release} supports it on CPU ranks"),
        ));
    }
    let refuses = format!("{title}{release} refuses {dtype} on the CPU ranks of this machine");
    let (detail, advice) = match python.fact(limit.on_cpu) {
        PythonAttempt::Value(on_cpu) if on_cpu.as_bool() == Some(true) => {
            (refuses, limit.other_release)
        }
        PythonAttempt::Value(_) => (format!("{refuses}: {}", limit.without_cpu), limit.other_cpu),
        PythonAttempt::Problem(problem) if problem == NOT_TRIED => (refuses, limit.other_cpu),
        PythonAttempt::Problem(problem) => (format!("{refuses} ({problem})"), limit.other_cpu),
    };
    Some(DoctorCheck::not(subject, CheckState::Missing, detail, advice))
}
