//! Commands of cargo, as xtask starts them.

use std::env;
use std::path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, workspace};

/// A cargo command at the root of the repository; `line` holds its arguments, separated by spaces.
pub fn cargo(line: &str) -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(line.split_whitespace()).current_dir(workspace::root());
    if let Some(dir) = env::var_os("CARGO_TARGET_DIR") {
        // A relative path is meant from the user's working directory, not from the root.
        let dir = path::absolute(dir).context("CARGO_TARGET_DIR is not a usable path")?;
        command.env("CARGO_TARGET_DIR", dir);
    }
    Ok(command)
}

/// Shows a cargo command and runs it to its end.
pub fn run(mut command: Command) -> Result<()> {
    command::run_as("cargo", &mut command)
}

/// Returns true if cargo-nextest is installed.
pub fn has_nextest() -> bool {
    cargo("nextest --version")
        .and_then(|mut command| Ok(command.output()?))
        .is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let error = run(cargo("no-such-subcommand").unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("`cargo no-such-subcommand` failed"), "{error}");
    }
}
