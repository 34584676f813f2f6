//! Checks the lines on a channel: each line must be the next record of the process that owns the channel.

use std::ops::Range;

use serde::de::IgnoredAny;

use zprobe_model::spec::RunSpec;
use zprobe_model::trace::{Event, PROTOCOL_VERSION, Record, Violation};

/// The largest number of characters of an invalid line that the trace stores.
const EXCERPT: usize = 200;

/// The role of the process that may write to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChannelOwner {
    /// A rank, with its number.
    Rank(usize),
    /// A host, which forks the ranks of this range and waits for them.
    Host(Range<usize>),
}

/// The checker of the lines that a single process writes to its channel.
pub(super) struct LineChecker {
    run: String,
    spec: RunSpec,
    role: ChannelOwner,
    next_seq: u64,
    finished: bool,
}

impl LineChecker {
    /// Creates the checker for a process that has not written any record yet.
    pub(super) fn new(run: &str, spec: &RunSpec, role: ChannelOwner) -> Self {
        Self { run: run.to_owned(), spec: spec.clone(), role, next_seq: 0, finished: false }
    }

    /// Returns the number of the rank, or `None` if the process is a host.
    pub(super) fn rank(&self) -> Option<usize> {
        match self.role {
            ChannelOwner::Rank(rank) => Some(rank),
            ChannelOwner::Host(_) => None,
        }
    }

    /// Returns the sequence number of the next record.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Checks the next line of the process and returns its record.
    pub(super) fn check(&mut self, line: &[u8]) -> Result<Record, Violation> {
        let record = parse(line)?;
        if record.run != self.run || record.rank != self.rank() {
            return Err(Violation::WrongSender);
        }
        if self.finished {
            return Err(Violation::AfterFinished);
        }
        if record.seq != self.next_seq {
            return Err(Violation::OutOfSequence);
        }
        self.check_event(&record.event)?;
        self.next_seq += 1;
        self.finished = record.event == Event::Finished;
        Ok(record)
    }

    fn check_event(&self, event: &Event) -> Result<(), Violation> {
        match (&self.role, event) {
            (
                ChannelOwner::Host(ranks),
                Event::RankSpawned { rank, .. } | Event::RankExited { rank, .. },
            ) if ranks.contains(rank) => Ok(()),
            (ChannelOwner::Host(_), Event::Importing { .. }) => Ok(()),
            (ChannelOwner::Host(_), _) => Err(Violation::WrongSender),
            (
                ChannelOwner::Rank(_),
                Event::RunStarted { .. }
                | Event::AgentJoined { .. }
                | Event::AgentLost { .. }
                | Event::RankSpawned { .. }
                | Event::RankExited { .. }
                | Event::ProtocolViolated { .. }
                | Event::TimedOut { .. }
                | Event::Interrupted
                | Event::CommandEnded { .. }
                | Event::RankStopped { .. }
                | Event::Stderr { .. }
                | Event::StackTaken { .. },
            ) => Err(Violation::LauncherEvent),
            (ChannelOwner::Rank(_), event) if !self.spec.is_settled() => {
                event.fits_script().map_err(|_| Violation::Implausible)
            }
            (ChannelOwner::Rank(_), event) => {
                event.fits(&self.spec).map_err(|_| Violation::Implausible)
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<Record, Violation> {
    match serde_json::from_slice::<Record>(line) {
        Ok(record) if record.v == PROTOCOL_VERSION => Ok(record),
        Ok(_) => Err(Violation::NotARecord),
        // The parser stops at the first wrong field, so this checks whether the whole line is JSON.
        Err(_) if serde_json::from_slice::<IgnoredAny>(line).is_ok() => Err(Violation::NotARecord),
        Err(_) => Err(Violation::NotJson),
    }
}

/// Returns the start of an invalid line, with invalid UTF-8 replaced.
pub(super) fn excerpt(line: &[u8]) -> String {
    // A character has at most four bytes in UTF-8.
    let start = &line[..line.len().min(4 * EXCERPT)];
    String::from_utf8_lossy(start).chars().take(EXCERPT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: &str, seq: u64, event: &str) -> String {
        format!(r#"{{"v":1,"run":"r","rank":{rank},"seq":{seq},"t_ns":5,"event":{event}}}"#)
    }

    fn spec() -> RunSpec {
        zprobe_model::spec::SpecRequest::default().resolve().expect("the default run")
    }

    const FINISHED: &str = r#"{"type":"finished"}"#;
    const FAILED: &str = r#"{"type":"failed","message":"x"}"#;

    fn violation(role: ChannelOwner, line: &str) -> Option<Violation> {
        LineChecker::new("r", &spec(), role).check(line.as_bytes()).err()
    }

    #[test]
    fn each_kind_of_bad_line_has_its_name() {
        let cases = [
            ("Loading model...".to_owned(), Violation::NotJson),
            (String::new(), Violation::NotJson),
            ("7 of 9".to_owned(), Violation::NotJson),
            (r#"{"v":"1", oops"#.to_owned(), Violation::NotJson),
            ("7".to_owned(), Violation::NotARecord),
            (r#"{"loss":1.5}"#.to_owned(), Violation::NotARecord),
            (line("1", 0, r#"{"type":"invented"}"#), Violation::NotARecord),
            (
                line(
                    "1",
                    0,
                    r#"{"type":"phase-entered","step":9,"microbatch":0,"phase":"forward"}"#,
                ),
                Violation::Implausible,
            ),
            (line("1", 0, FINISHED).replace(r#""v":1"#, r#""v":2"#), Violation::NotARecord),
            (line("0", 0, FINISHED), Violation::WrongSender),
            (line("null", 0, FINISHED), Violation::WrongSender),
            (line("1", 0, FINISHED).replace(r#""r""#, r#""s""#), Violation::WrongSender),
            (line("1", 1, FINISHED), Violation::OutOfSequence),
            (line("1", 0, r#"{"type":"interrupted"}"#), Violation::LauncherEvent),
        ];
        for (line, expected) in cases {
            assert_eq!(violation(ChannelOwner::Rank(1), &line), Some(expected), "{line}");
        }
    }

    #[test]
    fn nothing_comes_after_finished() {
        let mut checker = LineChecker::new("r", &spec(), ChannelOwner::Rank(1));
        assert!(checker.check(line("1", 0, FINISHED).as_bytes()).is_ok());
        let late = checker.check(line("1", 1, FAILED).as_bytes());
        assert_eq!(late.err(), Some(Violation::AfterFinished));
    }

    #[test]
    fn a_host_speaks_of_its_own_ranks_and_imports_and_of_nothing_else() {
        let spawned = |rank| format!(r#"{{"type":"rank-spawned","rank":{rank},"pid":7}}"#);
        let host = || ChannelOwner::Host(0..2);
        let importing = r#"{"type":"importing","what":"torch"}"#;
        for good in [&spawned(1), importing] {
            assert_eq!(violation(host(), &line("null", 0, good)), None, "{good}");
        }
        for bad in [line("null", 0, &spawned(2)), line("null", 0, FINISHED)] {
            assert_eq!(violation(host(), &bad), Some(Violation::WrongSender), "{bad}");
        }
    }

    #[test]
    fn an_excerpt_is_short_and_readable() {
        assert_eq!(excerpt(b"caf\xc3\xa9 \xff"), "café \u{fffd}");
        assert_eq!(excerpt("é".repeat(1000).as_bytes()).chars().count(), EXCERPT);
    }
}
