//! `zprobe exec`: the training of the user's own script, from its command to a trace.
//!
//! The script is not touched. A directory at the head of `PYTHONPATH` has a `sitecustomize` that
//! watches torch in every Python process of the command (`attach`); each rank writes what it sees
//! into a file of its own in the run directory (`notes`), and each process another one about itself
//! (`processes`), with Python stacks if it crashes or hangs; once the command is over these become a
//! trace (`gather`) like that of any other run.
//!
//! In place of gradients the leaves of the first step get stamps, from which the place of every
//! element in the optimizers is read, and those of the next two steps get codes
//! ([`crate::spec::code`]), from which the weights are read. All else is the script's own. Where the
//! script is only observed, gradients stay, and samples of them are recorded instead.

mod attach;
mod dump;
mod gather;
mod notes;
mod processes;
mod standing;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::launch::{Ended, Look, UserCommand};
use crate::run_dir;
use crate::spec::{Scale, Weighting};
use crate::trace::Outcome;
use notes::Notes;
use processes::Processes;

pub use gather::NoAnswer;

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
    /// Seconds in which no rank writes anything, after which the script counts as hung.
    pub timeout_s: u64,
}

/// End of a script.
#[derive(Debug)]
pub struct Over {
    /// Reason why there is no trace, if there is none.
    pub no_answer: Option<NoAnswer>,
    /// Processes that are left.
    pub ended: Ended,
    /// Outcome of the command; none if it had to be killed.
    pub outcome: Option<Outcome>,
    /// True if zprobe ended the script because it had seen its steps.
    pub on_purpose: bool,
}

/// Runs the script and leaves a trace in `run_dir`, or says why there is no answer. Where it is only
/// observed, the trace is there as soon as the last step was, while the script goes on, and
/// `is_recorded` is called then.
///
/// # Errors
/// When the command does not start, or the run directory cannot be written.
pub fn record(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    is_recorded: &mut dyn FnMut() -> Result<()>,
) -> Result<Over> {
    let run_dir = std::path::absolute(run_dir).context("no working directory")?;
    let (directory, processes) = (run_dir.join("ranks"), run_dir.join("processes"));
    for directory in [&directory, &processes] {
        run_dir::create_dir(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
    }
    let bootstrap = attach::write(order, run_id, &run_dir, &directory, &processes)
        .with_context(|| format!("cannot write to {}", run_dir.display()))?;
    let variables = [("PYTHONPATH", attach::python_path(&bootstrap))];
    let command = UserCommand { words: &order.command, run_id, variables: &variables };
    let mut notes = Notes::in_dir(&directory);
    let mut unreadable = None;
    let mut silent_since = Instant::now();
    let (mut timed_out, mut on_purpose) = (false, false);
    let mut early: Option<Result<Option<NoAnswer>>> = None;
    let followed = command.follow(&mut || {
        if early.is_some() {
            return Look::GoOn;
        }
        match notes.read_on() {
            Ok(true) => silent_since = Instant::now(),
            Ok(false) => {}
            Err(error) => unreadable = Some(error),
        }
        timed_out = silent_since.elapsed() > Duration::from_secs(order.timeout_s);
        if timed_out || unreadable.is_some() {
            if timed_out && let Err(error) = processes::take_stacks(&processes, run_id) {
                unreadable = Some(error);
            }
            Look::Stuck
        } else if order.observe.is_some() && notes.are_complete() {
            let over = gather::End { outcome: None, interrupted: false, timed_out: false };
            let gathered =
                gather::gather(order, run_id, &run_dir, &notes, &Processes::default(), over);
            early = Some(gathered.and_then(|gathered| match gathered {
                Ok(()) => is_recorded().map(|()| None),
                Err(no_answer) => Ok(Some(no_answer)),
            }));
            Look::GoOn
        } else if notes.are_complete() {
            on_purpose = true;
            Look::Done
        } else {
            Look::GoOn
        }
    })?;
    if let Some(early) = early {
        return Ok(Over {
            no_answer: early?,
            ended: followed.ended,
            outcome: followed.outcome,
            on_purpose,
        });
    }
    let rest = notes.read_on().map(drop);
    unreadable
        .map_or(rest, Err)
        .with_context(|| format!("cannot read what the ranks noted in {}", directory.display()))?;
    let over =
        gather::End { outcome: followed.outcome, interrupted: followed.interrupted, timed_out };
    let processes = Processes::read(&processes)
        .with_context(|| format!("cannot read {}", processes.display()))?;
    let gathered = gather::gather(order, run_id, &run_dir, &notes, &processes, over)?;
    Ok(Over {
        no_answer: gathered.err(),
        ended: followed.ended,
        outcome: followed.outcome,
        on_purpose,
    })
}
