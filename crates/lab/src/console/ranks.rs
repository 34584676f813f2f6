//! Shows the progress of the ranks of one run on standard error.
//!
//! A terminal gets a line for the run and one for each rank, which are cleared at the end of the run. A log gets a line
//! for each milestone. `--verbose` prints all actions and logs of the ranks in lines, and `--quiet` prints nothing.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar};

use super::progress::{line, lines, message, tick, turn};
use super::states::RankStates;
use super::{Verbosity, say, say_between};
use zprobe_model::run_dir;
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::{Event, Record};

/// The largest number of ranks with a line each; more ranks share one line.
const RANKS_SHOWN: usize = 8;

/// The progress display for the ranks of one run.
pub struct RankProgress {
    states: RankStates,
    shown: ProgressDisplay,
    began: Instant,
}

/// The way in which the progress of ranks is shown.
enum ProgressDisplay {
    /// A line for each milestone, in a log.
    Lines,
    /// One line for each milestone, for a terminal that the user's script also writes to.
    Between,
    /// All actions and logs of the ranks as lines (`--verbose`).
    Everything(Vec<RankLog>),
    /// A line for the run and one for each rank, on a terminal.
    Live(LiveLines),
    /// No progress (`--quiet`).
    Nothing,
}

impl RankProgress {
    /// Starts the display for a run that is recorded in `run_dir`.
    pub fn new(spec: &RunSpec, run_dir: &Path) -> Self {
        let lines = lines();
        let flags = Verbosity::get();
        let shown = if flags.quiet {
            ProgressDisplay::Nothing
        } else if flags.verbose {
            ProgressDisplay::Everything(
                (0..spec.world_size).map(|rank| RankLog::new(run_dir, rank)).collect(),
            )
        } else if lines.is_hidden() {
            ProgressDisplay::Lines
        } else {
            ProgressDisplay::Live(LiveLines::new(lines, spec))
        };
        Self { states: RankStates::new(spec), shown, began: Instant::now() }
    }

    /// Starts the display for a user's script, which writes to the same terminal and whose ranks are not known yet.
    /// Milestones are shown as lines, and only on a terminal.
    pub fn of_script(spec: &RunSpec) -> Self {
        let flags = Verbosity::get();
        let shown = if flags.verbose {
            ProgressDisplay::Everything(Vec::new())
        } else if flags.quiet || lines().is_hidden() {
            ProgressDisplay::Nothing
        } else {
            ProgressDisplay::Between
        };
        Self { states: RankStates::new(spec), shown, began: Instant::now() }
    }

    /// Updates the display with a new record.
    pub fn see(&mut self, record: &Record) {
        let took = self.began.elapsed().as_secs_f64();
        let milestone = self.states.see(record).map(|line| format!("{line} ({took:.1} s)"));
        match &mut self.shown {
            ProgressDisplay::Nothing => {}
            ProgressDisplay::Lines => milestone.into_iter().for_each(say),
            ProgressDisplay::Between => milestone.iter().for_each(|line| say_between(line)),
            ProgressDisplay::Everything(logs) => {
                logs.iter_mut().for_each(RankLog::follow);
                let moves = matches!(
                    record.event,
                    Event::RankReady { .. }
                        | Event::PhaseEntered { .. }
                        | Event::CollectiveEntered { .. }
                        | Event::Finished
                );
                if let Some(rank) = record.rank.filter(|_| moves) {
                    say(format_args!("rank {rank}: {}", self.states.words(rank)));
                }
                milestone.into_iter().for_each(say);
            }
            ProgressDisplay::Live(live) => live.show(&self.states, record.rank),
        }
    }
}

impl Drop for RankProgress {
    fn drop(&mut self) {
        match &mut self.shown {
            ProgressDisplay::Live(live) => live.clear(),
            ProgressDisplay::Everything(logs) => logs.iter_mut().for_each(RankLog::follow),
            ProgressDisplay::Lines | ProgressDisplay::Between | ProgressDisplay::Nothing => {}
        }
    }
}

/// The live lines on a terminal: one for the run, and those of the ranks.
struct LiveLines {
    lines: MultiProgress,
    head: ProgressBar,
    /// The lines of the ranks with their texts: one line for each rank, or one line for all ranks.
    ranks: Vec<(ProgressBar, String)>,
    world_size: usize,
}

impl LiveLines {
    fn new(lines: MultiProgress, spec: &RunSpec) -> Self {
        let backwards = spec.steps * spec.gradient_accumulation_steps;
        let head = line(&lines, backwards, "{spinner} {since} [{bar:20}] {pos}/{len} {wide_msg}");
        turn(&head);
        let world_size = spec.world_size;
        let shown = if world_size <= RANKS_SHOWN { world_size } else { 1 };
        // The template's `wide_msg` is cut at the edge of the terminal.
        let rank = |_| (line(&lines, 0, "  {since} {wide_msg}"), String::new());
        let ranks = (0..shown).map(rank).collect();
        let mut live = Self { ranks, lines, head, world_size };
        live.show(&RankStates::new(spec), None);
        live
    }

    /// Shows the states after a record of `rank`; after a record of no rank, shows the states of all ranks.
    fn show(&mut self, states: &RankStates, rank: Option<usize>) {
        self.head.set_position(states.done());
        message(&self.head, &states.headline());
        if self.world_size > RANKS_SHOWN {
            let text = format!("{} ranks: {}", self.world_size, states.summary());
            self.set_line(0, text);
            return;
        }
        let shown = rank.map_or(0..self.ranks.len(), |rank| rank..rank + 1);
        for rank in shown {
            self.set_line(rank, format!("rank {rank}  {}", states.words(rank)));
        }
    }

    /// Shows a text in the line of a rank. The seconds in the line restart when the text changes.
    fn set_line(&mut self, index: usize, text: String) {
        let Some((line, shown)) = self.ranks.get_mut(index) else { return };
        if *shown != text {
            message(line, &text);
            line.reset_elapsed();
            tick(line);
            *shown = text;
        }
    }

    fn clear(&self) {
        for line in self.ranks.iter().map(|(line, _)| line).chain([&self.head]) {
            line.finish_and_clear();
        }
        let _ = self.lines.clear();
    }
}

/// The log with the standard error of a rank, which the launcher writes to a file.
struct RankLog {
    rank: usize,
    path: std::path::PathBuf,
    file: Option<BufReader<File>>,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
}

impl RankLog {
    fn new(dir: &Path, rank: usize) -> Self {
        let path = dir.join(format!("rank-{rank}.stderr.log"));
        Self { rank, path, file: None, line: Vec::new() }
    }

    /// Prints the complete lines that were added to the log since the last call.
    fn follow(&mut self) {
        if self.file.is_none() {
            self.file = run_dir::open(&self.path).ok().map(BufReader::new);
        }
        let Some(file) = &mut self.file else { return };
        while file.read_until(b'\n', &mut self.line).is_ok_and(|read| read > 0)
            && self.line.ends_with(b"\n")
        {
            let text = String::from_utf8_lossy(self.line.trim_ascii_end());
            say(format_args!("rank {} | {text}", self.rank));
            self.line.clear();
        }
    }
}
