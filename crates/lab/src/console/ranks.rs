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
use super::standing::Standing;
use super::{Verbosity, say, say_between};
use zprobe_model::run_dir;
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::{Event, Record};

/// The largest number of ranks with a line each; more ranks share one line.
const RANKS_SHOWN: usize = 8;

/// The progress display for the ranks of one run.
pub struct RankProgress {
    standing: Standing,
    shown: Shown,
    began: Instant,
}

/// The ways in which the progress of ranks is shown.
enum Shown {
    Lines,
    /// One line for each milestone, for a terminal that the user's script also writes to.
    Between,
    Everything(Vec<Log>),
    Live(Live),
    Nothing,
}

impl RankProgress {
    /// Starts the display for a run that is recorded in `run_dir`.
    pub fn new(spec: &RunSpec, run_dir: &Path) -> Self {
        let lines = lines();
        let flags = Verbosity::get();
        let shown = if flags.quiet {
            Shown::Nothing
        } else if flags.verbose {
            Shown::Everything((0..spec.world_size).map(|rank| Log::new(run_dir, rank)).collect())
        } else if lines.is_hidden() {
            Shown::Lines
        } else {
            Shown::Live(Live::new(lines, spec))
        };
        Self { standing: Standing::new(spec), shown, began: Instant::now() }
    }

    /// Starts the display for a user's script, which writes to the same terminal and whose ranks are not known yet.
    /// Milestones are shown as lines, and only on a terminal.
    pub fn of_script(spec: &RunSpec) -> Self {
        let flags = Verbosity::get();
        let shown = if flags.verbose {
            Shown::Everything(Vec::new())
        } else if flags.quiet || lines().is_hidden() {
            Shown::Nothing
        } else {
            Shown::Between
        };
        Self { standing: Standing::new(spec), shown, began: Instant::now() }
    }

    /// Updates the display with a new record.
    pub fn see(&mut self, record: &Record) {
        let took = self.began.elapsed().as_secs_f64();
        let milestone = self.standing.see(record).map(|line| format!("{line} ({took:.1} s)"));
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Lines => milestone.into_iter().for_each(say),
            Shown::Between => milestone.iter().for_each(|line| say_between(line)),
            Shown::Everything(logs) => {
                logs.iter_mut().for_each(Log::follow);
                let moves = matches!(
                    record.event,
                    Event::RankReady { .. }
                        | Event::PhaseEntered { .. }
                        | Event::CollectiveEntered { .. }
                        | Event::Finished
                );
                if let Some(rank) = record.rank.filter(|_| moves) {
                    say(format_args!("rank {rank}: {}", self.standing.words(rank)));
                }
                milestone.into_iter().for_each(say);
            }
            Shown::Live(live) => live.show(&self.standing, record.rank),
        }
    }
}

impl Drop for RankProgress {
    fn drop(&mut self) {
        match &mut self.shown {
            Shown::Live(live) => live.clear(),
            Shown::Everything(logs) => logs.iter_mut().for_each(Log::follow),
            Shown::Lines | Shown::Between | Shown::Nothing => {}
        }
    }
}

/// The live lines on a terminal: one for the run, and those of the ranks.
struct Live {
    lines: MultiProgress,
    head: ProgressBar,
    /// The lines of the ranks with their texts: one line for each rank, or one line for all ranks.
    ranks: Vec<(ProgressBar, String)>,
    world_size: usize,
}

impl Live {
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
        live.show(&Standing::new(spec), None);
        live
    }

    /// Shows the standing after a record of `rank`, or of no particular rank.
    fn show(&mut self, standing: &Standing, rank: Option<usize>) {
        self.head.set_position(standing.done());
        message(&self.head, &standing.headline());
        if self.world_size > RANKS_SHOWN {
            let text = format!("{} ranks: {}", self.world_size, standing.summary());
            self.tell(0, text);
            return;
        }
        let shown = rank.map_or(0..self.ranks.len(), |rank| rank..rank + 1);
        for rank in shown {
            self.tell(rank, format!("rank {rank}  {}", standing.words(rank)));
        }
    }

    /// Shows a text in the line of a rank. The seconds in the line restart when the text changes.
    fn tell(&mut self, index: usize, text: String) {
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
struct Log {
    rank: usize,
    path: std::path::PathBuf,
    file: Option<BufReader<File>>,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
}

impl Log {
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
