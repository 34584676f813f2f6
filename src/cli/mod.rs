//! The command line of zprobe: parses the arguments, runs the command and returns the exit code.

mod bisect;
mod check;
mod clean;
mod compare;
mod completions;
mod config;
mod doctor;
#[cfg(test)]
mod documented;
mod exec;
mod explain;
mod flags;
mod glossary;
mod help;
mod init;
mod interpreter;
mod issue;
mod list;
mod man;
mod minimise;
mod nodes;
mod output;
mod own_flags;
mod preflight;
mod provision;
mod run;
mod show;
mod sweep;
mod words;
mod worker;
mod zoo;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use zprobe_lab::console::{self, Verbosity};
use zprobe_launch::put_signals_right;
use zprobe_report::Exit;

/// Tests whether every gradient reaches the optimizer once, with the right weight
///
/// Did every (rank, microbatch) gradient reach the optimizer exactly once, with the right weight,
/// in the right place, on every rank?
#[derive(Parser)]
#[command(name = "zprobe", version, after_long_help = Exit::help(help::EXIT_CODES))]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    verbosity: Verbosity,

    /// Colours in the output: auto means only on a terminal, unless NO_COLOR or FORCE_COLOR is set
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    color: console::Colour,
}

#[derive(Subcommand)]
enum Command {
    /// Run real optimizer steps on every rank, and diagnose them
    Run(Box<run::RunArgs>),
    /// Run your own training script, unmodified, and diagnose it
    Exec(exec::ExecArgs),
    /// Run every probe of a suite on warm ranks, for CI
    Check(Box<check::CheckArgs>),
    /// Show the report of a recorded run again
    #[command(alias = "diagnose")]
    Show(show::ShowArgs),
    /// Compare two runs: verdicts, weights, losses, norms
    Compare(compare::CompareArgs),
    /// Write a bug report for a recorded run, as a zip to attach
    #[command(alias = "report")]
    Issue(issue::IssueArgs),
    /// Explain a rule, a known bug, a setting, an exit code
    Explain(explain::ExplainArgs),
    /// List recorded runs, rules, known bugs, probes, faults, …
    List(list::ListArgs),
    /// Reproduce known bugs on the releases that have them
    Zoo(zoo::ZooArgs),
    /// Run one engine over a lattice of configurations
    Sweep(sweep::SweepArgs),
    /// Make the runs that are read from standard input, one after the other
    #[command(name = zprobe_lab::worker::COMMAND, hide = true)]
    Worker(worker::WorkerArgs),
    /// Find the first bad release, or the first good one
    Bisect(Box<bisect::BisectArgs>),
    /// Remove runs and environments that are old, many or large
    Clean(clean::CleanArgs),
    /// Show which engines this machine can run, and why not the others
    Doctor(doctor::DoctorArgs),
    /// Take two steps on every GPU of a job before training starts
    Preflight(Box<preflight::PreflightArgs>),
    /// Write zprobe.toml and a workflow for GitHub Actions
    Init(init::InitArgs),
    /// Make a Python environment with pinned packages
    Provision(provision::ProvisionArgs),
    /// Print the script with which a shell completes command lines
    Completions(completions::CompletionsArgs),
    /// Print a manual page, or write all of them
    Man(man::ManArgs),
}

/// The stack size, in bytes, of the thread that does all the work: the usual default of a main thread. The shell
/// sets the main thread's own stack (`ulimit -s`), which may be too small even for an error message.
const STACK: usize = 8 << 20;

/// Runs zprobe's command line, and returns the exit code.
pub fn main() -> ExitCode {
    match completions::answer(Cli::command) {
        Ok(false) => {}
        Ok(true) => return Exit::Clean.into(),
        Err(error) => {
            console::usage(&error);
            return Exit::NothingRan.into();
        }
    }
    let everything = std::thread::Builder::new().stack_size(STACK).spawn(run_command_line);
    match everything.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(_)) if is_step() => bisect::step::ABORT.into(),
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        // No thread could be started, so the main thread does the work on its own stack.
        Err(_) => run_command_line(),
    }
}

fn run_command_line() -> ExitCode {
    let ready = put_signals_right().context("cannot set signals up");
    let done = match ready.and_then(|()| command()) {
        Ok(command) => perform(command),
        Err(error) => error.downcast().map(|usage| match console::usage(&usage) {
            true => Exit::Clean,
            false => Exit::NothingRan,
        }),
    };
    let exit = done.unwrap_or_else(|error| {
        console::error(&format!("{error:#}"));
        Exit::NothingRan
    });
    // `git bisect run` would take exit code 2 for a bad commit.
    if exit == Exit::NothingRan && is_step() { bisect::step::ABORT.into() } else { exit.into() }
}

/// True if the command is `zprobe bisect step`, which `git bisect run` starts.
fn is_step() -> bool {
    let mut words =
        std::env::args_os().skip(1).filter(|word| !word.to_string_lossy().starts_with('-'));
    words.next().is_some_and(|word| word == "bisect")
        && words.next().is_some_and(|word| word == "step")
}

/// Parses the command line; a configuration file supplies the values that no flag or variable gives.
fn command() -> Result<Command> {
    let given: Vec<_> = std::env::args_os().collect();
    let words = words::dashed(given.clone());
    let whole = help::arranged(own_flags::alone(Cli::command(), &words), &words);
    let matches = config::matches(whole, &words).map_err(|error| match error.downcast() {
        Ok(usage) => own_flags::hinted(usage, &Cli::command(), &given).into(),
        Err(error) => error,
    })?;
    let cli = Cli::from_arg_matches(&matches)?;
    cli.verbosity.install();
    console::colour(cli.color);
    Ok(cli.command)
}

fn perform(command: Command) -> Result<Exit> {
    match command {
        Command::Run(args) => run::main(*args),
        Command::Exec(args) => exec::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Show(args) => show::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Issue(args) => issue::main(&args),
        Command::Explain(args) => explain::main(&args, &Cli::command()),
        Command::List(args) => list::main(&args),
        Command::Zoo(args) => zoo::main(&args),
        Command::Sweep(args) => sweep::main(&args),
        Command::Worker(args) => worker::main(&args),
        Command::Bisect(args) => bisect::main(&args),
        Command::Clean(args) => clean::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Preflight(args) => preflight::main(*args),
        Command::Init(args) => init::main(&args),
        Command::Provision(args) => provision::main(&args),
        Command::Completions(args) => completions::main(&args),
        Command::Man(args) => man::main(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
