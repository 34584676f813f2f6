//! Commands that run to their end, shown before they start.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a command to its end, after showing it.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    run_as(&program, command)
}

/// Runs a command to its end, after showing it with this name of its program.
pub fn run_as(program: &str, command: &mut Command) -> Result<()> {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let line = [program.into()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status}); see the messages above");
    Ok(())
}
