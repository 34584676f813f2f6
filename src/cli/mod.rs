//! The command line: arguments in, exit code out.

mod check;
mod ci;
mod clean;
mod compare;
mod completions;
mod config;
mod console;
mod cuda;
mod diagnose;
mod doctor;
mod explain;
mod flags;
mod form;
mod interpreter;
mod limits;
mod list;
mod man;
mod minimise;
mod progress;
mod provision;
mod repeat;
mod report;
mod run;
mod runner;
mod secrets;
mod store;
mod sweep;
mod verbosity;
mod workers;
mod zoo;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use zprobe::diagnose::rules;
use zprobe::launch::put_signals_right;
use zprobe::report::Report;
use zprobe::report::render::{html, render_within};
use zprobe::report::suite::Suite;
use zprobe::trace::Trace;

use self::console::{columns, print};
use self::form::Form;
use self::verbosity::Verbosity;

/// Exit code for a usage or set-up error: nothing ran.
const USAGE: u8 = 2;

/// Did every (rank, microbatch) gradient reach the optimizer exactly once, with the right weight,
/// in the right place, on every rank?
#[derive(Parser)]
#[command(name = "zprobe", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    verbosity: Verbosity,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  clean
  1  findings
  2  usage or set-up error, nothing ran
  3  the engine under test crashed or hung
  4  inconclusive";

#[derive(Subcommand)]
enum Command {
    /// Run real optimizer steps on every rank, and diagnose them
    Run(Box<run::Args>),
    /// Run every probe of a suite over warm ranks, for a CI
    Check(Box<check::Args>),
    /// Diagnose a recorded run again
    Diagnose(diagnose::Args),
    /// Put two runs side by side: verdicts, weights, and loss and norm of each step
    Compare(compare::Args),
    /// Make a bug report of a recorded run, as a zip to attach to an issue
    Report(report::Args),
    /// Explain a rule
    Explain(explain::Args),
    /// List what zprobe knows
    List(list::Args),
    /// Try known bugs on the released versions that have them
    Zoo(zoo::Args),
    /// Run one engine over a lattice of configurations
    Sweep(sweep::Args),
    /// Run configurations that standard input names, over one pool
    #[command(hide = true)]
    PoolWorker(workers::serve::Args),
    /// Remove recorded runs that are too old, too many or too large
    Clean(clean::Args),
    /// Say what this machine can run, and why not
    Doctor(doctor::Args),
    /// Make a Python environment with pinned packages, and print its interpreter
    Provision(provision::Args),
    /// Print what a shell needs to complete command lines
    Completions(completions::Args),
    /// Print a manual page, or write all of them
    Man(man::Args),
}

/// How to hand out a report.
#[derive(clap::Args)]
struct Output {
    /// Form of the report on standard output
    #[arg(long, value_name = "FORMAT", default_value = "full", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: Form,

    /// Also write report.json to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<std::path::PathBuf>,

    /// Also write the report as one HTML page to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_HTML")]
    export_html: Option<std::path::PathBuf>,

    #[command(flatten)]
    exports: ci::Exports,

    /// Exit with 0 whatever the verdict; errors that kept anything from running still exit with 2
    #[arg(long, env = "ZPROBE_EXIT_ZERO", value_parser = clap::builder::BoolishValueParser::new())]
    exit_zero: bool,
}

impl Output {
    /// Prints the report on a recorded run, exports it, and turns its verdict into an exit code.
    fn hand_out(&self, report: &Report, trace: &Trace) -> anyhow::Result<u8> {
        let suite = || {
            // A word that is no Unicode is shown as well as it can be.
            let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
            let command = ["zprobe".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
            let command = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
            secrets::without(Suite::of_run(report, command, config::FILE.to_owned(), page))
        };
        match self.output_format {
            Form::Run(format) => print(&render_within(report, format, columns())?)?,
            Form::Suite(format) => ci::print(&suite()?, format)?,
        }
        if let Some(path) = &self.export_json {
            ci::write(path, &report.to_json()?)?;
        }
        if self.exports.any() {
            self.exports.write(&suite()?)?;
        }
        if let Some(path) = &self.export_html {
            std::fs::write(path, html(report, trace, &|code| Some(rules::find(code)?.doc))?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(if self.exit_zero { 0 } else { report.exit_code() })
    }
}

/// The documentation of a rule.
fn page(code: &str) -> Option<&'static str> {
    rules::find(code).map(|rule| rule.doc)
}

/// Stack of the thread that does everything: as much as the main thread has by default, which is what
/// the shell gives it (`ulimit -s`), and may be too little to say so.
const STACK: usize = 8 << 20;

/// Runs the command line.
pub fn main() -> ExitCode {
    let everything = std::thread::Builder::new().stack_size(STACK).spawn(run_command_line);
    match everything.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        // Without another thread, as well as it goes.
        Err(_) => run_command_line(),
    }
}

fn run_command_line() -> ExitCode {
    let ready = put_signals_right().context("cannot set signals up");
    let done = match ready.and_then(|()| command()) {
        Ok(command) => perform(command),
        Err(error) => match error.downcast() {
            Ok(usage) => return console::usage(&usage),
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(code) => code.into(),
        Err(error) => {
            console::error(&format!("{error:#}"));
            USAGE.into()
        }
    }
}

/// What the command line, with a configuration file below it, asks for.
fn command() -> anyhow::Result<Command> {
    let line: Vec<OsString> = std::env::args_os().scan(true, dashed).collect();
    let matches = config::matches(Cli::command(), &line)?;
    let cli = Cli::from_arg_matches(&matches)?;
    cli.verbosity.install();
    Ok(cli.command)
}

fn perform(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::main(*args),
        Command::Check(args) => check::main(&args),
        Command::Diagnose(args) => diagnose::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::List(args) => list::main(&args),
        Command::Zoo(args) => zoo::main(&args),
        Command::Sweep(args) => sweep::main(&args),
        Command::PoolWorker(args) => workers::serve::main(&args),
        Command::Clean(args) => clean::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Provision(args) => provision::main(&args),
        Command::Completions(args) => completions::main(&args),
        Command::Man(args) => man::main(&args),
    }
}

/// `--nproc_per_node` is `--nproc-per-node`, as in torchrun; what follows `--` is left alone, and so are
/// several flags in one word, which are somebody's value.
pub fn dashed(flags: &mut bool, arg: OsString) -> Option<OsString> {
    let text = arg.to_str().filter(|text| *flags && is_flag(text));
    let Some(text) = text else { return Some(arg) };
    if text == "--" {
        *flags = false;
        return Some(arg);
    }
    Some(match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    })
}

fn is_flag(text: &str) -> bool {
    text.starts_with("--") && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn underscores_in_flag_names_are_dashes_up_to_a_double_dash() {
        let several = "--python a_b/bin --x_y=1";
        let args = ["--nproc_per_node=2", "--out", "a_b", "--x_y=a_b", several, "--", "--a_b"];
        let dashed: Vec<OsString> =
            args.into_iter().map(OsString::from).scan(true, dashed).collect();
        let right = ["--nproc-per-node=2", "--out", "a_b", "--x-y=a_b", several, "--", "--a_b"];
        assert_eq!(dashed, right);
    }
}
