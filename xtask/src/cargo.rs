//! The commands given to cargo.

use std::env;
use std::path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// A cargo command at the root of the repository; its arguments, none with a space, are one line.
pub fn cargo(line: &str) -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(line.split_whitespace()).current_dir(workspace::root());
    if let Some(dir) = env::var_os("CARGO_TARGET_DIR") {
        // A relative path is meant from the working directory of the user, not from the root.
        let dir = path::absolute(dir).context("CARGO_TARGET_DIR is not a usable path")?;
        command.env("CARGO_TARGET_DIR", dir);
    }
    Ok(command)
}

/// Runs a cargo command to its end, after showing it.
pub fn run(mut command: Command) -> Result<()> {
    let line = line(&command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status}); see the messages above");
    }
    Ok(())
}

/// Returns true if cargo-nextest is installed.
pub fn has_nextest() -> bool {
    cargo("nextest --version")
        .and_then(|mut command| Ok(command.output()?))
        .is_ok_and(|output| output.status.success())
}

/// The command as a person would type it.
fn line(command: &Command) -> String {
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    [String::from("cargo")].into_iter().chain(args.map(Into::into)).collect::<Vec<_>>().join(" ")
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
