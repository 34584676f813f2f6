//! Findings in words, from which every form of a finding is made.

use super::{Fact, TextSpan};
use crate::{Finding, KnownBug};

impl Finding {
    /// The code and the name of the finding: `ZP101 boundary-leak`.
    pub fn title(&self) -> String {
        format!("{} {}", self.code, self.name)
    }

    /// The place of the finding, as far as it is known: `step 0, microbatch 3, rank 1`.
    pub fn place(&self) -> String {
        let parts = [("step", self.step), ("microbatch", self.microbatch), ("rank", self.rank)];
        let mut known: Vec<String> =
            parts.iter().filter_map(|(what, n)| n.map(|n| format!("{what} {n}"))).collect();
        known.extend(self.param.as_ref().map(|param| format!("parameter {param}")));
        known.extend(self.bucket.map(|bucket| format!("flush {bucket}")));
        known.join(", ")
    }

    /// The place of the finding in parentheses, after a space; empty if no place is known.
    pub(super) fn place_in_brackets(&self) -> String {
        let place = self.place();
        if place.is_empty() { place } else { format!(" ({place})") }
    }

    /// The place and the message in one sentence: `step 0, microbatch 3: the gradient is missing`.
    pub fn statement(&self) -> String {
        match self.place() {
            place if place.is_empty() => self.message.clone(),
            place => format!("{place}: {}", self.message),
        }
    }

    /// All facts about the finding besides its message: its evidence, its consequences, and the known bugs that it
    /// looks like.
    pub fn facts(&self) -> Vec<Fact> {
        let evidence = self.evidence.iter().map(|evidence| Fact::new("", evidence));
        let consequences = self
            .consequences
            .iter()
            .map(|it| Fact::new("consequence", format!("{}: {}", it.code, it.message)));
        let known = self.known.iter().flat_map(KnownBug::facts);
        evidence.chain(consequences).chain(known).collect()
    }

    /// The facts of [`Finding::facts`] as text, one fact for each line.
    pub fn lines(&self) -> Vec<String> {
        let line = |fact: &Fact| {
            let said: Vec<&str> = fact.said.iter().map(TextSpan::text).collect();
            format!("{}{}", fact.lead(), said.join(", "))
        };
        self.facts().iter().map(line).collect()
    }
}

impl KnownBug {
    /// The facts about the bug: its description, the command with the fix, links, the cause, and the workaround.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::new(format!("known bug {}", self.name), self.description())];
        let upgrade = self.upgrade.iter().cloned().map(TextSpan::Code);
        facts.extend(upgrade.map(|command| Fact::each("fix", [command])));
        if !self.links.is_empty() {
            facts.push(Fact::each("see", self.links.iter().cloned().map(TextSpan::Link)));
        }
        facts.push(Fact::new("cause", &self.cause));
        facts.push(Fact::new("what to do", &self.workaround));
        facts
    }
}
