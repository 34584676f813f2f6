//! The ranks of a run for which this process answers, however their processes came to be.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::Channel;
use super::news::{Letter, Sink};

/// Reason for which the processes of a run are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Why {
    /// The processes have ended by themselves, or another agent says so.
    Over,
    /// Ranks have been silent for too long.
    Silent,
    /// The user has interrupted the run.
    Interrupted,
    /// A rank or a machine is lost, and the others have had time to notice it.
    Crashed,
    /// Every rank has finished, and its process has had time to end.
    Lingers,
}

/// Standing of a rank at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// True if the rank has said that it has finished.
    pub(super) has_finished: bool,
    /// True if it has finished, and its process has ended with success.
    pub(super) has_ended_well: bool,
}

/// The ranks of a run for which this process answers.
pub(super) trait Ranks {
    /// Tells of the processes that exist from the start.
    fn tell_of_started(&mut self, sink: &mut Sink<'_>) -> Result<(), LaunchError> {
        let _ = sink;
        Ok(())
    }

    /// Channels that can be waited for; none once closed.
    fn channels(&self) -> Vec<Option<&Channel>> {
        Vec::new()
    }

    /// Receives the lines on the channel `index` of [`Self::channels`]; it is closed at its end.
    fn listen(&mut self, index: usize, sink: &mut Sink<'_>) -> Result<(), LaunchError> {
        let _ = (index, sink);
        Ok(())
    }

    /// Looks at what cannot be waited for. Returns the time of the next look, if there is to be one.
    fn look(&mut self, sink: &mut Sink<'_>) -> Result<Option<Instant>, LaunchError> {
        let _ = sink;
        Ok(None)
    }

    /// True if the processes that this one has started have ended.
    fn is_over(&self) -> bool;

    /// Takes note of the processes that have ended since the last call.
    fn reap(&mut self, sink: &mut Sink<'_>) -> Result<(), LaunchError>;

    /// Time that the other ranks have after one has ended abnormally, less if the timeout is less; none where they are
    /// left to themselves.
    fn crash_grace(&self) -> Option<Duration>;

    /// Time that processes may take to end once every rank has finished or ended.
    fn linger_grace(&self) -> Duration;

    /// True if the processes are the user's own: a line that is not the protocol does not end them.
    fn are_the_users(&self) -> bool {
        false
    }

    /// True if the processes do work of the user's own once their ranks have finished.
    fn outlive_the_run(&self) -> bool {
        false
    }

    /// Takes the stacks of ranks that are silent, before they are ended, and tells of those that nobody has
    /// heard of.
    fn before_silence(&mut self, sink: &mut Sink<'_>) -> Result<(), LaunchError> {
        let _ = sink;
        Ok(())
    }

    /// Time for which ranks were ready to run and had no core since the last look, for each of
    /// `awaited` that runs here.
    fn starved(&mut self, awaited: &[usize]) -> Vec<(usize, Duration)>;

    /// Longest time for which a process that is left had no core since the last look.
    fn left_starved(&mut self) -> Option<Duration>;

    /// Ends all processes that are left. Returns the ids of processes that did not die.
    fn end(&mut self, why: Why, sink: &mut Sink<'_>) -> Result<Vec<u32>, LaunchError>;

    /// Hands a letter of a rank of another machine to the ranks of this one.
    fn deliver(&mut self, letter: &Letter) -> Result<(), LaunchError> {
        let _ = letter;
        Ok(())
    }

    /// Tells of what is known only after the end: outcomes of ranks of this process that were not told before, and the
    /// last words of ranks that did not end well.
    fn tell_last_words(
        &mut self,
        why: Why,
        ranks: &[Standing],
        sink: &mut Sink<'_>,
    ) -> Result<(), LaunchError>;

    /// Tells of the ends of ranks of which no process on any machine has told.
    fn tell_of_unheard(
        &mut self,
        why: Why,
        ranks: &[Standing],
        sink: &mut Sink<'_>,
    ) -> Result<(), LaunchError> {
        let _ = (why, ranks, sink);
        Ok(())
    }

    /// Ends all processes that are left, and tells of nothing. Returns the ids of processes that did not die.
    fn kill(&mut self) -> Vec<u32>;
}
