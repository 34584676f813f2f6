//! Progress of the ranks of one run, on standard error.
//!
//! On a terminal: a line for the run and one for each rank, gone when the run is over. Elsewhere, in
//! a log: a line for each milestone. With `--verbose`: all that ranks do and log, in lines. With
//! `--quiet`: nothing.

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

/// Most ranks that have a line each; more share one line.
const RANKS_SHOWN: usize = 8;

/// Progress of the ranks of one run.
pub struct RankProgress {
    standing: Standing,
    shown: Shown,
    began: Instant,
}

/// Ways to show the progress of ranks.
enum Shown {
    Lines,
    /// Lines on a terminal to which a script writes.
    Between,
    Everything(Vec<Log>),
    Live(Live),
    Nothing,
}

impl RankProgress {
    /// Begins to show the run that is recorded in `run_dir`.
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

    /// Begins to show a script, of whose ranks nothing is known yet, and which writes to the same terminal: in
    /// lines for milestones, on a terminal alone.
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

    /// Takes note of a record.
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

/// Lines on a terminal.
struct Live {
    lines: MultiProgress,
    head: ProgressBar,
    /// A line for each rank, or one for all, with its text.
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
        // A wide message is cut at the edge of the terminal.
        let rank = |_| (line(&lines, 0, "  {since} {wide_msg}"), String::new());
        let ranks = (0..shown).map(rank).collect();
        let mut live = Self { ranks, lines, head, world_size };
        live.show(&Standing::new(spec), None);
        live
    }

    /// Shows what a record has changed: one of a rank, or of all ranks.
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

    /// Shows a text in the line of a rank, with the seconds since it is true.
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

/// Standard error of a rank, which the launcher keeps in a file.
struct Log {
    rank: usize,
    path: std::path::PathBuf,
    file: Option<BufReader<File>>,
    /// The start of a line whose end is not there yet.
    line: Vec<u8>,
}

impl Log {
    fn new(dir: &Path, rank: usize) -> Self {
        let path = dir.join(format!("rank-{rank}.stderr.log"));
        Self { rank, path, file: None, line: Vec::new() }
    }

    /// Prints the lines that are new.
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
