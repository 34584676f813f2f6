//! Commands that run to their end and are printed before they start.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Prints a command, and runs it to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    run_as(&program, command)
}

/// Prints a command with `program` as the name of its program, and runs the command to its end.
pub fn run_as(program: &str, command: &mut Command) -> Result<()> {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let line = [program.into()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status}); see the messages above");
    Ok(())
}
