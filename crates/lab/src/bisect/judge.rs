//! The judge of trials: which show the finding that is looked for.

use anyhow::{Context as _, Result, ensure};

use super::search::Mark;
use super::signature::{Seen, Signature};
use zprobe_report::Report;
use zprobe_zoo::got;

/// Judge of one search. The finding is known from the start, or from the bad end on.
#[derive(Clone, Debug)]
pub struct Judge {
    signature: Option<Signature>,
    /// True if the first without the finding is looked for.
    fixed: bool,
}

/// Verdict on a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if it shows the finding; none if it could not be tested.
    pub shows: Option<bool>,
    /// Result of the run in a few words, or the reason why there is none.
    pub said: String,
}

impl Judge {
    /// A judge who knows the finding, or will learn it.
    pub fn new(signature: Option<Signature>, fixed: bool) -> Self {
        Self { signature, fixed }
    }

    /// Learns the finding from the run at the bad end, `name`, unless it is known.
    ///
    /// # Errors
    /// When that run has none.
    pub fn learn(&mut self, bad: &Result<Report>, name: &str) -> Result<()> {
        if let (None, Ok(report)) = (&self.signature, bad) {
            let signature = Signature::of(report);
            self.signature = Some(signature.with_context(|| {
                format!("{name} is {}: nothing is bad there; choose another --bad", got(report))
            })?);
        }
        Ok(())
    }

    /// The finding, by its code and name; empty where none is known.
    pub fn finding(&self) -> String {
        self.signature.as_ref().map(Signature::title).unwrap_or_default()
    }

    /// The verdict on a run, or on the reason why there is none.
    pub fn verdict(&self, report: Result<Report>) -> Verdict {
        let (shows, said) = match (report, &self.signature) {
            (Err(error), _) => (None, format!("{error:#}")),
            (Ok(report), None) => (None, got(&report)),
            (Ok(report), Some(signature)) => match signature.seen_in(&report) {
                Seen::Same => (Some(true), got(&report)),
                Seen::Absent => (Some(false), got(&report)),
                Seen::Unclear(reason) => (None, reason),
            },
        };
        Verdict { shows, said }
    }

    /// The place of a trial in the search.
    pub fn mark(&self, shows: Option<bool>) -> Mark {
        match shows {
            Some(shows) if shows == self.fixed => Mark::Old,
            Some(_) => Mark::New,
            None => Mark::Skipped,
        }
    }
}

impl Verdict {
    /// The verdict in words.
    pub fn in_words(&self) -> String {
        in_words(self.shows, &self.said)
    }

    /// Refuses an end, `name`, that is not what its flag says.
    ///
    /// # Errors
    /// When it is not.
    pub fn is_end(&self, name: &str, is_bad: bool) -> Result<()> {
        let flag = if is_bad { "--bad" } else { "--good" };
        ensure!(
            self.shows == Some(is_bad),
            "{name} is not what {flag} says: {}; choose another",
            self.in_words()
        );
        Ok(())
    }
}

/// A trial in words.
pub fn in_words(shows: Option<bool>, said: &str) -> String {
    let word = match shows {
        Some(true) => "bad",
        Some(false) => "good",
        None => "skipped",
    };
    format!("{word}: {said}")
}
