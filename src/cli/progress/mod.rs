//! Progress on standard error while ranks run.
//!
//! On a terminal: a line for the run and one for each rank, gone when the run is over. Elsewhere, in
//! a log: a line for each milestone. With `--verbose`: all that ranks do and log, in lines. With
//! `--quiet`: nothing.

mod standing;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use zprobe::run_dir;
use zprobe::spec::RunSpec;
use zprobe::trace::{Event, Record};

use self::standing::Standing;
use super::console;
use super::verbosity::{self, Verbosity};

/// More ranks than this have one line together.
const RANKS_SHOWN: usize = 8;

/// Progress of one run.
pub struct Progress {
    standing: Standing,
    shown: Shown,
}

/// How it is shown.
enum Shown {
    Lines,
    Everything(Vec<Log>),
    Live(Live),
    Nothing,
}

impl Progress {
    /// Begins to show the run that is recorded in `run_dir`.
    pub fn new(spec: &RunSpec, run_dir: &Path) -> Self {
        let lines = MultiProgress::new();
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
        Self { standing: Standing::new(spec), shown }
    }

    /// Takes note of a record.
    pub fn see(&mut self, record: &Record) {
        let milestone = self.standing.see(record);
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Lines => milestone.into_iter().for_each(verbosity::say),
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
                    verbosity::say(format_args!("rank {rank}: {}", self.standing.words(rank)));
                }
                milestone.into_iter().for_each(verbosity::say);
            }
            Shown::Live(live) => live.show(&self.standing, record.rank),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        match &mut self.shown {
            Shown::Live(live) => live.clear(),
            Shown::Everything(logs) => logs.iter_mut().for_each(Log::follow),
            Shown::Lines | Shown::Nothing => {}
        }
    }
}

/// Lines on a terminal.
struct Live {
    lines: MultiProgress,
    head: ProgressBar,
    /// A line for each rank, or one for all.
    ranks: Vec<ProgressBar>,
    world_size: usize,
}

impl Live {
    fn new(lines: MultiProgress, spec: &RunSpec) -> Self {
        let backwards = (spec.steps * spec.gradient_accumulation_steps) as u64;
        let head = lines.add(ProgressBar::new(backwards));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {pos}/{len}") {
            head.set_style(style.progress_chars("=> "));
        }
        console::message(&head, "backwards");
        head.enable_steady_tick(Duration::from_millis(100));
        let world_size = spec.world_size;
        let shown = if world_size <= RANKS_SHOWN { world_size } else { 1 };
        let line = |_| {
            let line = lines.add(ProgressBar::new_spinner());
            // A wide message is cut at the edge of the terminal.
            if let Ok(style) = ProgressStyle::with_template("  {wide_msg}") {
                line.set_style(style);
            }
            line
        };
        Self { ranks: (0..shown).map(line).collect(), lines, head, world_size }
    }

    fn show(&self, standing: &Standing, rank: Option<usize>) {
        self.head.set_position(standing.done());
        let Some(rank) = rank else { return };
        if self.world_size > RANKS_SHOWN {
            let text = format!("{} ranks: {}", self.world_size, standing.summary());
            console::message(&self.ranks[0], &text);
        } else if let Some(line) = self.ranks.get(rank) {
            console::message(line, &format!("rank {rank}  {}", standing.words(rank)));
        }
    }

    fn clear(&self) {
        for line in self.ranks.iter().chain([&self.head]) {
            line.finish_and_clear();
        }
        let _ = self.lines.clear();
    }
}

/// What a rank writes to its standard error, which the launcher keeps in a file.
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
            verbosity::say(format_args!("rank {} | {text}", self.rank));
            self.line.clear();
        }
    }
}
