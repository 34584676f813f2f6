//! `zprobe exec`: the training of the user's own script, from its command to a trace.
//!
//! The script is not touched. A directory at the head of `PYTHONPATH` has a `sitecustomize` that
//! watches torch in every Python process of the command (`attach`). A process that goes backward joins the
//! run as a rank ([`crate::Joining`]), and all that it says becomes the trace.
//!
//! In place of gradients the leaves of the first step get stamps, from which the place of every
//! element in the optimizers is read, and those of the next two steps get codes
//! ([`zprobe_model::spec::code`]), from which the weights are read. All else is the script's own. Where the
//! script is only observed, gradients stay, and samples of them are recorded instead.

mod attach;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::agents::{Leader, Team};
use crate::{Ended, Joining, LaunchError, UserCommand};
use zprobe_model::run_dir;
use zprobe_model::spec::{CODED_SCRIPT, Found, RunSpec, Scale, ScriptOptions, Weighting};
use zprobe_model::trace::{Event, Outcome, REST_OF_SCRIPT, Record};

/// File beside the channels that this process keeps locked for as long as it lives (`mailbox.py`).
const LOCK: &str = "zprobe.lock";

/// All inputs of a run of the user's script.
#[derive(Clone, Debug)]
pub struct Order {
    /// The command, as the user starts it.
    pub command: Vec<OsString>,
    /// True if no optimizer is to step.
    pub dry: bool,
    /// Number of steps whose real gradients are sampled; none where codes take their place.
    pub observe: Option<usize>,
    /// The law that the weights of target tokens are to follow.
    pub weighting: Weighting,
    /// The sum that the weights of the loss are to have.
    pub scale: Scale,
    /// Seed of the codes.
    pub seed: u64,
    /// Seconds of silence after which a rank that does not wait for another counts as hung.
    pub timeout_s: u64,
}

impl Order {
    /// All settings that must be the same for all commands of a script, each under its name.
    pub fn settings(&self) -> Value {
        json!({
            "command": "exec",
            "dry": self.dry,
            "observe": self.observe,
            "weighting": self.weighting,
            "scale": self.scale,
            "seed": self.seed,
            "timeout": self.timeout_s,
        })
    }

    /// The specification of the script, as far as it is known before the script starts.
    pub fn spec(&self) -> RunSpec {
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let options = ScriptOptions {
            command: words.collect(),
            dry: self.dry,
            observe: self.observe,
            weighting: self.weighting,
            scale: self.scale,
            reserved: None,
        };
        RunSpec::of_script(options, &Found::nothing(self.seed, self.timeout_s))
    }
}

/// End of a script.
#[derive(Debug)]
pub struct Over {
    /// Processes that are left.
    pub ended: Ended,
    /// Outcome of the command; none if zprobe had to kill the command. Where there is a command on each of several
    /// machines, the outcome of one that failed.
    pub outcome: Option<Outcome>,
    /// True if zprobe ended the script because it had seen its steps.
    pub on_purpose: bool,
}

/// Runs the script and leaves a trace in `run_dir`, together with the other agents of `team` if there are any.
/// `observer` sees each record as it is written, and `is_complete` is called when every rank has finished: all that the
/// trace is to tell of a script that is only observed is there then, while the script goes on.
///
/// # Errors
/// When a command does not start, commands train apart, or the run directory cannot be written.
pub fn record(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    team: Option<&mut Team>,
    observer: &mut dyn FnMut(&Record),
    is_complete: &mut dyn FnMut(),
) -> Result<Over> {
    let (mut outcome, mut on_purpose) = (None, false);
    let (mut world_size, mut finished) = (usize::MAX, BTreeSet::new());
    let mut observer = |record: &Record| {
        observer(record);
        match (&record.event, record.rank) {
            (Event::RankJoined { world_size: ranks, .. }, _) => world_size = *ranks,
            (Event::CommandEnded { outcome: of_command }, _) => {
                outcome = Some(Outcome::of_commands(outcome, *of_command));
            }
            (Event::StepEnded { step, .. }, _) => on_purpose |= *step + 1 >= CODED_SCRIPT,
            (Event::NotObserved { what, .. }, _) => on_purpose |= what == REST_OF_SCRIPT,
            (Event::Finished, Some(rank)) => {
                finished.insert(rank);
                if finished.len() == world_size {
                    is_complete();
                }
            }
            _ => {}
        }
    };
    let ended = join(order, run_id, run_dir, |joining| match team {
        Some(team) => joining.lead(team, &mut observer),
        None => joining.run(&mut observer),
    })?;
    on_purpose &= order.observe.is_none() && finished.len() == world_size;
    Ok(Over { ended, outcome: outcome.flatten(), on_purpose })
}

/// Runs the script as this process's part of a run that another agent leads. The trace in `run_dir` has the ranks of
/// this command alone.
///
/// # Errors
/// As [`record`].
pub fn follow(order: &Order, run_id: &str, run_dir: &Path, leader: &mut Leader) -> Result<Ended> {
    join(order, run_id, run_dir, |joining| joining.follow(leader))
}

/// Sets up the watch in `run_dir`, and runs the script.
fn join(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    run: impl FnOnce(&Joining<'_>) -> Result<Ended, LaunchError>,
) -> Result<Ended> {
    let run_dir = std::path::absolute(run_dir).context("no working directory")?;
    let (channels, processes) = (run_dir.join("ranks"), run_dir.join("processes"));
    for directory in [&channels, &processes] {
        run_dir::create_dir(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
    }
    let life = run_dir::create(&channels.join(LOCK))
        .with_context(|| format!("cannot write to {}", channels.display()))?;
    // Where a file system has no locks, ranks do not see whether this process is there.
    let _ = life.lock();
    let bootstrap = attach::write(order, run_id, &run_dir, &channels, &processes)
        .with_context(|| format!("cannot write to {}", run_dir.display()))?;
    let variables = [("PYTHONPATH", attach::python_path(&bootstrap))];
    let command = UserCommand {
        words: &order.command,
        variables: &variables,
        channels: &channels,
        processes: &processes,
        goes_on: order.observe.is_some(),
    };
    let spec = order.spec();
    let ended = run(&Joining { run_id, spec: &spec, command, run_dir: &run_dir });
    drop(life);
    Ok(ended?)
}
