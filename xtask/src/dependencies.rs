//! The crates compiled into zprobe: their sources, their licences and their known vulnerabilities.
//!
//! `deny.toml` holds the rules; cargo-deny applies them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::Host;
use crate::workspace;

/// The checks that need only the crates themselves.
const LOCAL: [&str; 3] = ["licenses", "sources", "bans"];

/// The outcome of the check for known vulnerabilities of dependencies.
#[derive(Debug, PartialEq, Eq)]
pub enum Advisories {
    /// No advisory applies.
    Clean,
    /// The advisory database could not be fetched.
    OutOfReach,
}

/// Checks licences and sources, and also advisories if their database can be fetched.
///
/// `tools` is the directory that holds cargo-deny.
pub fn check(host: &Host, tools: &Path) -> Result<Advisories> {
    judge(host, tools, &LOCAL)?;
    // The database is fetched separately, to distinguish an unreachable database from an advisory that
    // applies.
    let fetched = deny(host, tools, &["fetch", "db"]).status().context(NOT_STARTED)?;
    if !fetched.success() {
        eprintln!(
            "warning: known vulnerabilities were not checked: their database cannot be fetched"
        );
        return Ok(Advisories::OutOfReach);
    }
    judge(host, tools, &["advisories"])?;
    Ok(Advisories::Clean)
}

/// The error if cargo-deny cannot be started.
const NOT_STARTED: &str = "cannot start cargo-deny";

/// Runs cargo-deny with these checks.
fn judge(host: &Host, tools: &Path, checks: &[&str]) -> Result<()> {
    let args = [&["--workspace", "check"], checks].concat();
    let status = deny(host, tools, &args).status().context(NOT_STARTED)?;
    ensure!(
        status.success(),
        "cargo-deny refuses a dependency ({status}); see the messages above, and the rules \
         in deny.toml"
    );
    Ok(())
}

/// A command that runs cargo-deny on this workspace.
fn deny(host: &Host, tools: &Path, args: &[&str]) -> Command {
    eprintln!("$ cargo-deny {}", args.join(" "));
    let mut command = host.command(tools.join("cargo-deny"));
    command.args(args).current_dir(workspace::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    /// The result of the checks with a cargo-deny that is this script.
    fn checked(script: &str) -> Result<Advisories> {
        let host = FakeHost::new().with("cargo-deny", script);
        check(&host, host.programs())
    }

    #[test]
    fn a_licence_that_is_not_allowed_fails() {
        let error = checked("case \"$*\" in *licenses*) exit 4;; esac").unwrap_err().to_string();
        assert!(error.starts_with("cargo-deny refuses a dependency"), "{error}");
    }

    #[test]
    fn a_known_vulnerability_fails() {
        assert!(checked("case \"$*\" in *advisories*) exit 1;; esac").is_err());
    }

    #[test]
    fn a_database_out_of_reach_is_told_from_a_clean_one() {
        let without = checked("case \"$*\" in *fetch*|*advisories*) exit 1;; esac").unwrap();
        assert_eq!(without, Advisories::OutOfReach);
        assert_eq!(checked("").unwrap(), Advisories::Clean);
    }
}
