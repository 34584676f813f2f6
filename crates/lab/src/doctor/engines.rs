//! The checks that tell which engines can run on this machine.

use super::checks::{INSTALL_TORCH, no_answer};
use super::{CheckState, DoctorCheck, InterpreterError, MachineFacts, PythonAttempt, PythonFacts};
use zprobe_engines as engines;
use zprobe_model::spec::Engine;

/// The checks that tell which engines can run, one for each engine in the order of [`Engine::CHOICES`].
pub fn engines(
    machine: &MachineFacts,
    python: &Result<PythonFacts, InterpreterError>,
) -> Vec<DoctorCheck> {
    Engine::CHOICES.iter().map(|engine| check(*engine, machine, python)).collect()
}

fn check(
    engine: Engine,
    machine: &MachineFacts,
    python: &Result<PythonFacts, InterpreterError>,
) -> DoctorCheck {
    let name = engine.name();
    let Some(needs) = &engines::of(engine).python else { return native(machine) };
    let python = match python {
        Ok(python) => python,
        Err(error) => return no_answer(name, error),
    };
    let PythonAttempt::Value(torch) = &python.torch else {
        return DoctorCheck::tried(name, &python.torch, String::clone, INSTALL_TORCH);
    };
    let detail = |found: &&serde_json::Value| match found.as_str() {
        Some(version) => format!("{name} {version}, torch {torch}"),
        None => format!("torch {torch}"),
    };
    DoctorCheck::tried(name, &python.fact(needs.tried_as(engine)), detail, needs.advice)
}

/// The check that tells whether the native engine, which is the default, can run.
pub fn native(machine: &MachineFacts) -> DoctorCheck {
    let name = Engine::default().name();
    match &machine.native {
        Ok(path) => DoctorCheck::ok(name, path.display().to_string()),
        Err(why) => {
            DoctorCheck::not(name, CheckState::Missing, why.clone(), engines::INSTALL_NATIVE)
        }
    }
}
