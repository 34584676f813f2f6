//! `zprobe exec`: runs a user's own training script, and records a trace of it.
//!
//! The script is not changed. A directory at the head of `PYTHONPATH` contains a `sitecustomize` that watches torch in
//! every Python process of the command (`attach`). A process that calls backward joins the run as a rank
//! ([`crate::JoiningRun`]), and its reports become the trace.
//!
//! Stamps replace the gradients of the leaf parameters in the first step; from the stamps zprobe reads the place of
//! every element in the optimizers. Codes ([`zprobe_model::spec::code`]) replace the gradients in the next two steps;
//! from the codes zprobe reads the weights. Nothing else is changed. If the script is only observed, gradients stay
//! unchanged, and samples of them are recorded instead.

mod attach;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::agents::{Leader, Team};
use crate::{JoiningRun, LaunchError, Survivors, UserCommand};
use zprobe_model::run_dir;
use zprobe_model::spec::{CODED_SCRIPT, Found, RunSpec, Scale, ScriptOptions, Weighting};
use zprobe_model::trace::{Event, Outcome, REST_OF_SCRIPT, Record};

/// The name of the lock file in the directory of the channels. This process holds the lock until it ends
/// (`mailbox.py`).
const LOCK: &str = "zprobe.lock";

/// All inputs of a run of a user's script.
#[derive(Clone, Debug)]
pub struct ExecRequest {
    /// The command, exactly as the user starts it without zprobe.
    pub command: Vec<OsString>,
    /// True if optimizers must not step.
    pub dry: bool,
    /// The number of steps whose real gradients are sampled; `None` if codes replace the gradients.
    pub observe: Option<usize>,
    /// The law that the weights of target tokens should follow.
    pub weighting: Weighting,
    /// The expected sum of the weights of the loss.
    pub scale: Scale,
    /// The seed of the codes.
    pub seed: u64,
    /// The seconds of silence after which a rank that does not wait for another rank counts as hung.
    pub timeout_s: u64,
}

impl ExecRequest {
    /// Returns all settings, by name, that must be the same in all commands of a script on several machines.
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

    /// Returns the part of the script's specification that is known before the script starts.
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

/// The end of a script under `zprobe exec`.
#[derive(Debug)]
pub struct ScriptEnd {
    /// The processes of the script that survived.
    pub ended: Survivors,
    /// The outcome of the command; `None` if zprobe had to kill the command. With a command on each of several
    /// machines, this is the first outcome that is not a success.
    pub outcome: Option<Outcome>,
    /// True if zprobe ended the script on purpose, because it had seen all steps that it needs.
    pub on_purpose: bool,
}

/// Runs the script and leaves a trace in `run_dir`. If there is a `team`, its other agents take part in the run.
/// `observer` sees each record when the record is written. `is_complete` is called when every rank has finished; the
/// trace of a script that is only observed is then complete, while the script continues.
///
/// # Errors
/// Fails if a command does not start, if the commands of two agents train separately, or if the run directory
/// cannot be written.
pub fn record(
    request: &ExecRequest,
    run_id: &str,
    run_dir: &Path,
    team: Option<&mut Team>,
    observer: &mut dyn FnMut(&Record),
    is_complete: &mut dyn FnMut(),
) -> Result<ScriptEnd> {
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
    let ended = join(request, run_id, run_dir, |joining| match team {
        Some(team) => joining.lead(team, &mut observer),
        None => joining.run(&mut observer),
    })?;
    on_purpose &= request.observe.is_none() && finished.len() == world_size;
    Ok(ScriptEnd { ended, outcome: outcome.flatten(), on_purpose })
}

/// Runs the script as this process's part of a run that another agent leads. The trace in `run_dir` contains only the
/// ranks of this command.
///
/// # Errors
/// Fails like [`record`].
pub fn follow(
    request: &ExecRequest,
    run_id: &str,
    run_dir: &Path,
    leader: &mut Leader,
) -> Result<Survivors> {
    join(request, run_id, run_dir, |joining| joining.follow(leader))
}

/// Prepares `run_dir` for the ranks of the script, and runs the script.
fn join(
    request: &ExecRequest,
    run_id: &str,
    run_dir: &Path,
    run: impl FnOnce(&JoiningRun<'_>) -> Result<Survivors, LaunchError>,
) -> Result<Survivors> {
    let run_dir = std::path::absolute(run_dir).context("cannot determine the working directory")?;
    let (channels, processes) = (run_dir.join("ranks"), run_dir.join("processes"));
    for directory in [&channels, &processes] {
        run_dir::create_dir(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
    }
    let lock_file = run_dir::create(&channels.join(LOCK))
        .with_context(|| format!("cannot write to {}", channels.display()))?;
    // On a file system without locks, ranks cannot see whether this process is alive.
    let _ = lock_file.lock();
    let bootstrap = attach::write(request, run_id, &run_dir, &channels, &processes)
        .with_context(|| format!("cannot write to {}", run_dir.display()))?;
    let variables = [("PYTHONPATH", attach::python_path(&bootstrap))];
    let command = UserCommand {
        words: &request.command,
        variables: &variables,
        channels: &channels,
        processes: &processes,
        goes_on: request.observe.is_some(),
    };
    let spec = request.spec();
    let ended = run(&JoiningRun { run_id, spec: &spec, command, run_dir: &run_dir });
    drop(lock_file);
    Ok(ended?)
}
