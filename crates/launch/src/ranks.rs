//! The interface of the ranks for which this process is responsible, however their processes were created.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::Channel;
use super::rank_report::{RankMessage, ReportSink};

/// The reason why the processes of a run are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StopReason {
    /// The processes have ended by themselves, or another agent says that the run is over.
    Over,
    /// Ranks have been silent for longer than the timeout.
    Silent,
    /// The user has interrupted the run.
    Interrupted,
    /// A rank or a machine is lost, and the grace period of the other ranks has passed.
    Crashed,
    /// Every rank has finished, and a process still runs after the grace period for ending.
    Lingers,
}

/// The state of a rank at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FinalState {
    /// True if the rank has reported that it has finished.
    pub(super) has_finished: bool,
    /// True if the rank has finished and its process has ended with success.
    pub(super) has_ended_well: bool,
}

/// The ranks of a run for which this process is responsible.
pub(super) trait RankProcesses {
    /// Reports the processes that exist from the start.
    fn report_started(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let _ = sink;
        Ok(())
    }

    /// Returns the channels that can be polled; `None` for a closed channel.
    fn channels(&self) -> Vec<Option<&Channel>> {
        Vec::new()
    }

    /// Receives the lines on the channel with this index in [`Self::channels`]. A channel from which no more lines can
    /// come is closed.
    fn listen(&mut self, index: usize, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let _ = (index, sink);
        Ok(())
    }

    /// Checks sources that cannot be polled, such as files. Returns the time of the next check, or `None` if no
    /// further check is needed.
    fn look(&mut self, sink: &mut ReportSink<'_>) -> Result<Option<Instant>, LaunchError> {
        let _ = sink;
        Ok(None)
    }

    /// True if all processes that this process has started have ended.
    fn is_over(&self) -> bool;

    /// Reports the processes that have ended since the last call.
    fn reap(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError>;

    /// Returns the grace period of the other ranks after one rank has ended abnormally, or `None` if the other ranks
    /// may continue without a limit. The period is cut to the timeout.
    fn crash_grace(&self) -> Option<Duration>;

    /// Returns the time that processes may take to end once every rank has finished or ended.
    fn linger_grace(&self) -> Duration;

    /// True if the processes belong to the user's own command. The user's processes are not ended after a line that
    /// violates the protocol.
    fn are_the_users(&self) -> bool {
        false
    }

    /// True if the processes continue with the user's own work after their ranks have finished.
    fn outlive_the_run(&self) -> bool {
        false
    }

    /// Takes the stacks of silent ranks before they are ended, and reports ranks that have not joined.
    fn before_silence(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let _ = sink;
        Ok(())
    }

    /// Returns the ranks of `awaited` that this process is responsible for, each with the time, since the last check,
    /// for which the rank was ready to run and had no CPU core.
    fn starved(&mut self, awaited: &[usize]) -> Vec<(usize, Duration)>;

    /// Returns the longest time, since the last check, for which a remaining process had no CPU core.
    fn left_starved(&mut self) -> Option<Duration>;

    /// Ends all remaining processes. Returns the ids of the processes that did not die.
    fn end(&mut self, why: StopReason, sink: &mut ReportSink<'_>) -> Result<Vec<u32>, LaunchError>;

    /// Hands a message from a rank of another machine to the ranks of this machine.
    fn deliver(&mut self, rank_message: &RankMessage) -> Result<(), LaunchError> {
        let _ = rank_message;
        Ok(())
    }

    /// Reports facts that are known only after the end: outcomes of ranks of this process that were not reported
    /// before, and the last lines on standard error of ranks that did not end well.
    fn report_stderr(
        &mut self,
        why: StopReason,
        ranks: &[FinalState],
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError>;

    /// Reports outcomes for the ranks whose end no process on any machine has reported.
    fn report_unheard(
        &mut self,
        why: StopReason,
        ranks: &[FinalState],
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let _ = (why, ranks, sink);
        Ok(())
    }

    /// Ends all remaining processes without any report. Returns the ids of the processes that did not die.
    fn kill(&mut self) -> Vec<u32>;
}
