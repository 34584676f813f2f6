//! Sets zprobe up, builds it and tests it; `cargo xtask help` lists the tasks.

mod accuracy;
mod bench;
mod browser;
mod budget;
mod cargo;
#[path = "../../tests/support/changes.rs"]
mod changes;
mod chaos;
mod cli;
mod command;
mod coverage;
mod dependencies;
mod dist;
mod engines;
mod frameworks;
mod gpu;
mod host;
mod integrations;
mod lattice;
mod launchers;
mod libtorch;
mod newest;
mod page;
mod planted;
mod planted_commits;
mod provision;
mod steps;
mod sweeps;
mod tasks;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Error;
use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    // `cargo xtask run` stands for `zprobe run`, whose exit code 2 means that nothing ran. Exit code 1, which
    // means findings, is only for failed checks.
    let checks = matches!(
        cli.task,
        cli::Task::Test { .. } | cli::Task::Chaos(_) | cli::Task::Gpu(_) | cli::Task::Newest(_)
    );
    let failure = if checks { 1 } else { 2 };
    match cli.task.perform() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(failure)
        }
    }
}

/// Prints an error and its causes.
fn report(error: &Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  caused by: {cause}");
    }
}
