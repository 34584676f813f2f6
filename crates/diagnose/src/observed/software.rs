//! The software of a run, as zprobe and the ranks' engines described it.

use std::collections::{BTreeMap, BTreeSet};

use zprobe_model::spec::Engine;
use zprobe_model::trace::Event;

/// The engine, the optimizer and zprobe itself, and the facts that they state about the run.
#[derive(Debug, Default)]
pub struct Software<'a> {
    /// The version of zprobe that recorded the run.
    pub zprobe: &'a str,
    /// The class names of the optimizer and of the inner optimizer.
    pub optimizer: Option<(&'a str, &'a str)>,
    /// The engine that was recognised in a user's script.
    pub recognised: Option<Engine>,
    /// The facts that each rank's engine states about itself, by rank.
    pub facts: BTreeMap<usize, &'a BTreeMap<String, String>>,
    /// The facts that were not observed, each with the reason.
    pub not_observed: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Software<'a> {
    /// Stores an event of a rank, if the event is about its software.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::OptimizerChosen { class, inner } => self.optimizer = Some((class, inner)),
            Event::EngineDescribed { engine, facts } => {
                self.facts.insert(rank, facts);
                self.recognised = self.recognised.or(*engine);
            }
            Event::NotObserved { what, why } => {
                self.not_observed.insert((what, why));
            }
            _ => {}
        }
    }

    /// Stores an event of the launcher, if the event has the version of zprobe.
    pub(super) fn see_launcher(&mut self, event: &'a Event) {
        if let Event::RunStarted { zprobe, .. } = event {
            self.zprobe = zprobe;
        }
    }

    /// True if zprobe itself failed to observe a part of a script.
    pub fn has_failed_to_see(&self) -> bool {
        self.not_observed.iter().any(|(_, why)| why.starts_with("zprobe failed"))
    }
}
