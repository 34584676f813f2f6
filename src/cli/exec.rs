//! `zprobe exec`: runs the user's own training script and reports on it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, ensure};
use clap::builder::{BoolishValueParser, Resettable};
use clap::{Args as _, FromArgMatches as _};
use zprobe_lab::agents::{AgentRole, FollowOutcome, follow_script};
use zprobe_lab::console::{say, say_recorded};
use zprobe_lab::store::{self, run_id};
use zprobe_lab::{recorded, run};
use zprobe_launch::agents::{JobPart, Team};
use zprobe_launch::exec::ExecRequest;
use zprobe_model::spec::{SCRIPT_TIMEOUT_S, Scale, Weighting};
use zprobe_model::trace::{Outcome, Trace, TraceError};
use zprobe_report::{Exit, Report};

use super::help::EXIT_CODES;
use super::interpreter::EventsPython;
use super::nodes::{Nodes, play};
use super::output::{Hints, Output};

/// The arguments of `zprobe exec`.
#[derive(clap::Args)]
#[command(next_line_help = false)]
pub struct ExecArgs {
    /// The command that starts the training, as you would type it without zprobe
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// Skip the optimizer steps, so that the parameters stay as they are
    #[arg(long, env = "ZPROBE_DRY", value_parser = BoolishValueParser::new())]
    dry: bool,

    /// Sample the real gradients of N steps, change nothing, and let the training go on
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3",
        conflicts_with = "dry",
        env = "ZPROBE_OBSERVE"
    )]
    observe: Option<usize>,

    /// Law that the weights of the target tokens must follow; another law is a finding
    #[arg(long, value_name = "LAW", default_value = "any", env = "ZPROBE_WEIGHTING")]
    weighting: Weighting,

    /// Scale that the loss must have in the update: that of a mean, of a sum over microbatches or ranks, or any
    #[arg(long, value_name = "SUM", default_value = "mean", env = "ZPROBE_SCALE")]
    scale: Scale,

    /// Seed of the gradient codes
    #[arg(long, value_name = "N", default_value_t = 0, env = "ZPROBE_SEED")]
    seed: u64,

    /// Seconds without a backward pass or a step after which the script counts as hung; NCCL times out after 600
    #[arg(long, value_name = "SECS", default_value_t = SCRIPT_TIMEOUT_S, env = "ZPROBE_TIMEOUT")]
    timeout: u64,

    /// Directory for trace and report [default: a new one under .zprobe/runs]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    nodes: Nodes,

    #[command(flatten)]
    config: super::config::Choice,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    python: EventsPython,
}

/// The settings of a script, by the ids of their flags: all flags of `zprobe exec` but those for the place of the run
/// and for its report.
pub const SETTINGS: [&str; 6] = ["dry", "observe", "weighting", "scale", "seed", "timeout"];

/// The request for a script with only these flags: environment variables are ignored. Of a flag that is given twice, the
/// last one counts.
pub fn request(flags: &[String], command: &[String]) -> Result<ExecRequest> {
    let parser = clap::Command::new("zprobe exec").no_binary_name(true).args_override_self(true);
    let parser = ExecArgs::augment_args(parser).mut_args(|arg| arg.env(Resettable::Reset));
    let words = flags.iter().map(String::as_str).chain(["--"]);
    let words = words.chain(command.iter().map(String::as_str));
    ExecArgs::from_arg_matches(&parser.try_get_matches_from(words)?)?.request()
}

pub fn main(args: &ExecArgs) -> Result<Exit> {
    let order = args.request()?;
    args.output.refuse_unwritable(&args.python.python())?;
    let run_id = run_id();
    let Some(job) = args.nodes.job_of_command(&args.command)? else {
        return args.lead(&order, &run_id, None);
    };
    let (meeting, patience) = (args.nodes.meeting_beside(&job)?, args.nodes.patience());
    let part = JobPart::of_command(job.index, job.size);
    play(
        AgentRole::find(part, &order.settings(), &run_id, &meeting, patience)?,
        |team| args.lead(&order, &run_id, Some(team)),
        |leader| {
            let run_dir = args.run_dir(leader.run_id());
            let ended = follow_script(&order, leader, &run_dir)?;
            if let FollowOutcome::Over(code) = ended {
                let words = Exit::ALL.iter().zip(EXIT_CODES).find(|(exit, _)| exit.code() == code);
                let words = words.map_or("ended", |(_, words)| words);
                say(format_args!("{words}; zprobe on the machine of rank 0 prints the report"));
            }
            Ok(ended)
        },
        |dir| args.report_alone(dir),
    )
}

impl ExecArgs {
    /// The request for the script.
    fn request(&self) -> Result<ExecRequest> {
        ensure!(self.timeout > 0, "--timeout 0: must be at least 1");
        ensure!(self.observe != Some(0), "--observe=0: must be at least 1");
        Ok(ExecRequest {
            command: self.command.clone(),
            dry: self.dry,
            observe: self.observe,
            weighting: self.weighting,
            scale: self.scale,
            seed: self.seed,
            timeout_s: self.timeout,
        })
    }

    /// The directory of the run: `--out`, or one below `.zprobe/runs` that is named by the id.
    fn run_dir(&self, run_id: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| Path::new(store::RUNS).join(run_id))
    }

    /// Watches the script, together with the other machines' agents in `team`, and prints the report.
    fn lead(&self, order: &ExecRequest, run_id: &str, team: Option<&mut Team>) -> Result<Exit> {
        let run_dir = self.run_dir(run_id);
        let mut early = None;
        let over = run::record_script(order, run_id, &run_dir, team, &mut || {
            if order.observe.is_some() {
                // If there is no report yet, it is made when the script has ended.
                early = recorded::report(&run_dir).ok().inspect(|(report, _)| {
                    say(format_args!(
                        "observed: {} so far; the script goes on, and the report follows when it ends (`zprobe \
                         show {}` shows it now)",
                        report.verdict,
                        run_dir.display(),
                    ));
                });
            }
        })?;
        let reported = early.map_or_else(|| recorded::report(&run_dir), Ok);
        let (report, trace) = match reported {
            Ok(reported) => reported,
            Err(error) => return self.no_answer(error),
        };
        if over.on_purpose {
            // The progress bar of the script may have left an unfinished line.
            say(
                "\nnote: zprobe ended the script on purpose, before the script could save anything; with --observe, \
                 it goes on",
            );
        }
        say_recorded(&run_dir);
        let exit = self.hand_out(&report, &trace, &run_dir)?;
        // A script that is only observed has trained as usual, so its own exit code counts.
        Ok(match over.outcome {
            Some(Outcome::Code(code @ 1..=255))
                if self.observe.is_some() && exit == Exit::Clean =>
            {
                Exit::OfCommand(code as u8)
            }
            _ => exit,
        })
    }

    /// Prints the report, and writes the exports.
    fn hand_out(&self, report: &Report, trace: &Trace, run_dir: &Path) -> Result<Exit> {
        self.output.hand_out(report, trace, run_dir, &self.python.python(), &Hints::default())
    }

    /// Prints the report on only the ranks of this machine, whose records are in `dir`.
    fn report_alone(&self, dir: &Path) -> Result<Exit> {
        match recorded::report(dir) {
            Ok((report, trace)) => self.hand_out(&report, &trace, dir),
            Err(error) => self.no_answer(error),
        }
    }

    /// Prints why the script could not be judged, if `error` is `TraceError::NoAnswer`; returns any other error.
    fn no_answer(&self, error: Error) -> Result<Exit> {
        let Some(TraceError::NoAnswer { reason, .. }) = error.downcast_ref() else {
            return Err(error);
        };
        let Some(Outcome::Code(code @ 1..=255)) = reason.outcome() else {
            say(format_args!("inconclusive: {reason}"));
            return Ok(Exit::Inconclusive);
        };
        // Experiments read one line.
        say(format_args!("inconclusive: {reason}; the output above has the cause"));
        // A script that is only observed has run as usual, so its own exit code counts.
        Ok(match self.observe {
            Some(_) => Exit::OfCommand(code as u8),
            None => Exit::Inconclusive,
        })
    }
}
