//! Runs that several agents make together: the agent of rank 0 leads, and the others follow.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::order::Order;
use super::runner::{cold, warn_of_survivors};
use super::runs::typed;
use super::store::claimed;
use crate::console::say;
use zprobe_launch::agents::{JobPart, Leader, LeaderRequest, Team};
use zprobe_launch::exec;
use zprobe_launch::job::{JobRendezvous, UNNUMBERED};
use zprobe_launch::{HostSource, Launch, Survivors};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::{TRACE_FILE, repeat_dir};

/// The time for which the leader may be silent between two runs, because it may be writing a long report.
const SILENCE: Duration = Duration::from_secs(600);

/// The time after which a process reports that it waits for the others.
const QUIET: Duration = Duration::from_secs(10);

/// The role of this process among the agents of a job.
#[derive(Debug)]
pub enum AgentRole {
    /// This process leads the other agents.
    Leads(Team),
    /// This process follows the agent of rank 0.
    Follows(Box<Leader>),
}

impl AgentRole {
    /// Meets the other agents, which must all be about to make runs with the same settings.
    ///
    /// # Errors
    /// When an agent does not come within `patience`, or is about to make other runs.
    pub fn find(
        part: JobPart,
        settings: &Value,
        run_id: &str,
        meeting: &JobRendezvous,
        patience: Duration,
    ) -> Result<Self> {
        let (met, is_met) = channel::<()>();
        thread::scope(|scope| {
            let (index, agents) = (part.agent.index, part.agents);
            scope.spawn(move || {
                if is_met.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                    let process = match index {
                        UNNUMBERED => format!("one of {agents} processes"),
                        index => format!("process {index} of {agents}"),
                    };
                    say(format_args!("{process} waits for the others at {}", meeting.endpoint));
                }
            });
            // Dropping `_met`, after a success or a failure, ends the wait of the other thread.
            let _met = met;
            Ok(if part.leads() {
                Self::Leads(Team::gather(part, settings, run_id, meeting, patience)?)
            } else {
                Self::Follows(Box::new(Leader::find(part, settings, meeting, patience)?))
            })
        })
    }
}

/// The end of the runs in which this process followed a leader.
#[derive(Debug)]
pub enum FollowOutcome {
    /// The leader has reported on all runs; every process exits with this code.
    Over(u8),
    /// The leader is lost; this directory has the records of the ranks of this process only.
    Alone(PathBuf),
}

/// A run that another agent leads.
struct LedRun<'a> {
    id: &'a str,
    /// The directory of the run for this process.
    dir: &'a Path,
    /// The port of the ranks' TCPStore on the leader's machine; `None` where the ranks are those of a user's script.
    port: Option<u16>,
}

/// Takes part in the runs that `leader` makes. The logs of this process's ranks are below `run_dir`, in a directory
/// of this process, which is removed if every run was clean.
///
/// # Errors
/// When the leader refuses the runs, or is lost before the first run.
pub fn follow(order: &Order, leader: Leader, run_dir: &Path) -> Result<FollowOutcome> {
    take_part(leader, run_dir, (&order.spec, true), &mut |leader, LedRun { id, dir, port }| {
        let port =
            port.context("the process of rank 0 runs a script, and this process does not; start the same command \
                          everywhere")?;
        let program = cold(order, dir)?;
        let source = HostSource::Cold(&program);
        let launch = Launch { run_id: id, spec: &order.spec, source, run_dir: dir };
        Ok(launch.follow(leader, port)?)
    })
}

/// Takes part in the run of a user's script that `leader` watches, as [`follow`] does. The script logs only to the
/// user's terminal, so no directory is kept.
///
/// # Errors
/// The errors of [`follow`].
pub fn follow_script(
    order: &exec::ExecRequest,
    leader: Leader,
    run_dir: &Path,
) -> Result<FollowOutcome> {
    take_part(leader, run_dir, (&order.spec(), false), &mut |leader, LedRun { id, dir, .. }| {
        exec::follow(order, id, dir, leader)
    })
}

fn take_part(
    mut leader: Leader,
    run_dir: &Path,
    (spec, has_logs): (&RunSpec, bool),
    make: &mut dyn FnMut(&mut Leader, LedRun<'_>) -> Result<Survivors>,
) -> Result<FollowOutcome> {
    let own = run_dir.join(format!("agent-{}", leader.own_index()));
    let mut last = None;
    loop {
        match leader.next_request(SILENCE) {
            LeaderRequest::Start { run, repeat, port } => {
                let dir = repeat.map_or_else(|| own.clone(), |number| repeat_dir(&own, number));
                let led = LedRun { id: &run, dir: &dir, port };
                match claimed(&dir, &typed(Some(spec)), || make(&mut leader, led)) {
                    Ok(ended) => warn_of_survivors(&ended),
                    Err(error) => leader.tell_failed(format!("{error:#}")),
                }
                last = Some(dir);
            }
            LeaderRequest::Over { exit } => {
                tidy_up(run_dir, &own, exit == 0 || !has_logs);
                return Ok(FollowOutcome::Over(exit));
            }
            LeaderRequest::Refused { why } => {
                tidy_up(run_dir, &own, true);
                bail!("{why} (said by the process of rank 0)");
            }
            LeaderRequest::Lost => {
                return last.map(FollowOutcome::Alone).context(
                    "the process of rank 0 has ended before a run began; look at its output",
                );
            }
        }
    }
}

/// Removes the files that the leader has as well. A file that cannot be removed stays.
fn tidy_up(run_dir: &Path, own: &Path, is_empty: bool) {
    if is_empty {
        let _ = fs::remove_dir_all(own);
        // This succeeds only if the directory is empty. The leader's trace is in it on a shared file system.
        let _ = fs::remove_dir(run_dir);
        return;
    }
    let repeats = fs::read_dir(own).into_iter().flatten().flatten().map(|entry| entry.path());
    for dir in repeats.chain([own.to_owned()]) {
        let _ = fs::remove_file(dir.join(TRACE_FILE));
    }
}
