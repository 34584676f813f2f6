//! Redactors that keep secrets out of all printed and exported text.

use std::path::Path;

use crate::attachment::logs;
use anyhow::{Context as _, Result};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Trace;
use zprobe_redact::{Known, Private, Redactor};
use zprobe_report::suite::Suite;

/// A redactor of the secrets of this machine, and of the secrets in the trace and the logs of a run.
///
/// # Errors
/// When a log cannot be read.
pub fn of_run(run_dir: &Path, trace: &Trace) -> Result<Redactor> {
    let mut known = Known::default();
    known.trace(trace);
    let logs = logs::tails(run_dir)
        .with_context(|| format!("cannot read the logs in {}", run_dir.display()))?;
    logs.iter().for_each(|tail| known.text(&tail.text));
    Ok(Redactor::of_secrets(&Private::here(Vec::new()), &known))
}

/// A redactor of the secrets of this machine, of a command line, and of the configuration of its run if it has one.
pub fn of_command(line: &str, spec: Option<&RunSpec>) -> Redactor {
    let mut known = Known::default();
    spec.and_then(RunSpec::deepspeed_config).into_iter().for_each(|config| known.json(config));
    known.text(line);
    Redactor::of_secrets(&Private::here(Vec::new()), &known)
}

/// A redactor of the secrets of this machine, and of all texts that look like a secret.
pub fn of_machine() -> Redactor {
    Redactor::of_secrets(&Private::here(Vec::new()), &Known::default())
}

/// The suite with the secrets removed from its commands and reasons.
///
/// # Errors
/// When a secret is also one of the fixed words of the suite's format, so that the word would be removed.
pub fn without(suite: Suite) -> Result<Suite> {
    let mut known = Known::default();
    known.json(&serde_json::to_value(&suite)?);
    let redactor = Redactor::of_secrets(&Private::here(Vec::new()), &known);
    Ok(Suite { pages: suite.pages.clone(), ..redactor.data(&suite)? })
}
