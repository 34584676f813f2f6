//! Which engines can run here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use zprobe::doctor::{State, engines, native};
use zprobe::spec::Engine;

use crate::cli::doctor::{examine, machine};

/// Seconds that an interpreter may take to try the engines: a busy machine takes minutes.
const TRY_LIMIT: u64 = 300;

/// Those of `wanted` that cannot run, each with why not and what to do. The interpreter is only asked
/// if one of them needs it: that takes as long as the imports do.
pub fn missing(
    wanted: impl Iterator<Item = Engine>,
    python: &Path,
) -> Result<BTreeMap<Engine, String>> {
    let wanted: BTreeSet<Engine> = wanted.collect();
    let checks = if wanted.iter().all(|engine| *engine == Engine::Native) {
        vec![native(&machine()?)]
    } else {
        let (machine, python) = examine(python, TRY_LIMIT)?;
        engines(&machine, &python)
    };
    // The native engine is the first of all.
    let checks = Engine::ALL.iter().zip(checks);
    let missing =
        checks.filter(|(engine, check)| wanted.contains(engine) && check.state != State::Ok);
    Ok(missing
        .map(|(engine, check)| {
            let advice = check.advice.map(|advice| format!("; {advice}")).unwrap_or_default();
            (*engine, format!("{}{advice}", check.detail))
        })
        .collect())
}
