//! Engines and settings that cannot run on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::select::{PlannedCase, PlannedRun};
use crate::doctor::{self, CheckState, DoctorCheck, native};
use crate::limits::{CANNOT_RUN, Limits, PATIENCE, examine, machine};
use zprobe_engines as engines;
use zprobe_model::spec::Engine;

/// The engines and settings that cannot run on this machine.
pub struct UnavailableEngines {
    /// The engines that cannot run at all, each with the reason and advice.
    pub engines: BTreeMap<Engine, String>,
    limits: Limits,
    python: PathBuf,
}

impl UnavailableEngines {
    /// Asks the machine, and the interpreter if one of the tasks needs a real engine. The interpreter's answer takes
    /// as long as the imports do.
    pub fn look(tasks: &[PlannedCase<'_>], python: &Path) -> Self {
        let of_engines = tasks.iter().filter(|task| task.engine != Engine::Script);
        let wanted: BTreeSet<Engine> = of_engines.map(|task| task.engine).collect();
        if wanted.is_empty() {
            // The command of a script decides which interpreter runs.
            return Self {
                engines: BTreeMap::new(),
                limits: Limits::default(),
                python: python.to_owned(),
            };
        }
        let (checks, limits) = if !wanted.iter().any(|engine| engines::of(*engine).is_real()) {
            (vec![native(&machine(Some(python)))], Limits::default())
        } else {
            let (machine, answer) = examine(python, PATIENCE);
            (doctor::engines(&machine, &answer), Limits::knowing(python, answer.ok()))
        };
        Self { engines: missing(&wanted, checks), limits, python: python.to_owned() }
    }

    /// The reason why a task cannot be run here; `None` if it can.
    pub fn reason(&self, task: &PlannedCase<'_>) -> Option<String> {
        let PlannedRun::OfEngine(spec, _) = &task.run else { return None };
        let engine = self.engines.get(&task.engine).cloned();
        let limit = || self.limits.refusal(spec, &self.python);
        engine.or_else(|| Some(format!("{CANNOT_RUN}: {}", limit()?)))
    }
}

/// The engines of `wanted` whose check failed, each with the reason.
fn missing(wanted: &BTreeSet<Engine>, checks: Vec<DoctorCheck>) -> BTreeMap<Engine, String> {
    // Checks are in the order of `Engine::CHOICES`, which begins with the native engine.
    let checks = Engine::CHOICES.iter().zip(checks);
    let missing =
        checks.filter(|(engine, check)| wanted.contains(engine) && check.state != CheckState::Ok);
    missing
        .map(|(engine, check)| {
            let advice = check.advice.map(|advice| format!("; {advice}")).unwrap_or_default();
            (*engine, format!("{}{advice}", check.detail))
        })
        .collect()
}
