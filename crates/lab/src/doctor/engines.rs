//! The checks that tell which engines can run on this machine.

use super::checks::{INSTALL_TORCH, no_answer};
use super::{Attempt, Check, Machine, NoAnswer, Python, State};
use zprobe_engines as engines;
use zprobe_model::spec::Engine;

/// The checks that tell which engines can run, one for each engine in the order of [`Engine::CHOICES`].
pub fn engines(machine: &Machine, python: &Result<Python, NoAnswer>) -> Vec<Check> {
    Engine::CHOICES.iter().map(|engine| check(*engine, machine, python)).collect()
}

fn check(engine: Engine, machine: &Machine, python: &Result<Python, NoAnswer>) -> Check {
    let name = engine.name();
    let Some(needs) = &engines::of(engine).python else { return native(machine) };
    let python = match python {
        Ok(python) => python,
        Err(error) => return no_answer(name, error),
    };
    let Attempt::Value(torch) = &python.torch else {
        return Check::tried(name, &python.torch, String::clone, INSTALL_TORCH);
    };
    let detail = |found: &&serde_json::Value| match found.as_str() {
        Some(version) => format!("{name} {version}, torch {torch}"),
        None => format!("torch {torch}"),
    };
    Check::tried(name, &python.fact(needs.tried_as(engine)), detail, needs.advice)
}

/// The check that tells whether the native engine, which is the default, can run.
pub fn native(machine: &Machine) -> Check {
    let name = Engine::default().name();
    match &machine.native {
        Ok(path) => Check::ok(name, path.display().to_string()),
        Err(why) => Check::not(name, State::Missing, why.clone(), engines::INSTALL_NATIVE),
    }
}
