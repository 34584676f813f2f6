//! Live progress on standard error while ranks run: gone when the run is over.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use zprobe::spec::RunSpec;
use zprobe::trace::{Event, Phase, Record};

/// A line that follows the slowest rank.
pub struct Progress {
    bar: ProgressBar,
    ready: Vec<bool>,
    done: Vec<u64>,
}

impl Progress {
    /// A progress line; invisible where standard error is no terminal.
    pub fn new(spec: &RunSpec) -> Self {
        let backwards = (spec.steps * spec.gradient_accumulation_steps) as u64;
        let bar = ProgressBar::new(backwards);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {pos}/{len}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(format!("starting {} ranks", spec.world_size));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, ready: vec![false; spec.world_size], done: vec![0; spec.world_size] }
    }

    /// Takes note of a record.
    pub fn see(&mut self, record: &Record) {
        let Some(rank) = record.rank.filter(|rank| *rank < self.ready.len()) else { return };
        match &record.event {
            Event::RankReady { .. } => {
                self.ready[rank] = true;
                let ready = self.ready.iter().filter(|ready| **ready).count();
                self.bar.set_message(format!("{ready} of {} ranks ready", self.ready.len()));
            }
            Event::PhaseEntered { step, microbatch, phase } => {
                if *phase == Phase::Backward {
                    self.done[rank] += 1;
                    self.bar.set_position(self.done.iter().copied().min().unwrap_or(0));
                }
                self.bar.set_message(format!("step {step}, microbatch {microbatch}: {phase}"));
            }
            _ => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
