//! The ranks' own words, for the user's own terminal.

use std::collections::BTreeMap;

use crate::Rank;
use zprobe_model::trace::{Event, Trace};
use zprobe_model::visible;

/// The words of the ranks of a run: messages of exceptions, ends of standard error, and invalid lines.
///
/// These words may quote anything, so a [`Report`](crate::Report) and all forms of it that are made for others do
/// without them. Only a terminal shows them.
#[derive(Clone, Debug, Default)]
pub struct OwnWords {
    /// The words of each rank; `None` stands for the process that hosts the ranks.
    of: BTreeMap<Option<usize>, Words>,
}

/// The words of one process.
#[derive(Clone, Debug, Default)]
struct Words {
    /// The message of its failure, and the lines with which it violated the protocol.
    said: Vec<String>,
    stderr: Option<String>,
}

impl OwnWords {
    /// The words of the ranks in a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut all = Self::default();
        for (sender, event) in trace.events() {
            match event {
                Event::Failed { message } => all.words(sender).said.push(shown(message)),
                Event::ProtocolViolated { rank, line, .. } => {
                    all.words(*rank).said.push(shown(line));
                }
                Event::Stderr { rank, tail } => all.words(*rank).stderr = Some(shown(tail)),
                _ => {}
            }
        }
        all
    }

    fn words(&mut self, of: Option<usize>) -> &mut Words {
        self.of.entry(of).or_default()
    }

    /// The words of a rank, or of its host if the rank was never started: first its message, then its standard error.
    pub fn of_rank(&self, rank: &Rank) -> impl Iterator<Item = &str> {
        let host = self.of.get(&None).filter(|_| rank.pid.is_none());
        let words = self.of.get(&Some(rank.rank)).or(host);
        words.into_iter().flat_map(|it| it.said.iter().chain(&it.stderr)).map(String::as_str)
    }

    /// The message of a rank, or the last line of its standard error; `None` if the rank left neither.
    pub fn last_line(&self, rank: &Rank) -> Option<&str> {
        let mut words = self.of_rank(rank);
        let first = words.next()?;
        let said = self.of.get(&Some(rank.rank)).is_some_and(|it| !it.said.is_empty());
        if said { Some(first) } else { first.lines().next_back() }
    }

    /// True if a rank or the host used this phrase.
    pub fn contain(&self, phrase: &str) -> bool {
        let all = self.of.values().flat_map(|it| it.said.iter().chain(&it.stderr));
        all.into_iter().any(|text| text.contains(phrase))
    }
}

/// The text without hidden characters.
fn shown(text: &str) -> String {
    visible::text(text).into_owned()
}
