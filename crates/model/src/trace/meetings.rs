//! Meetings: points at which ranks wait for each other, read from the events of the ranks.
//!
//! Some events say that a rank has come to a point that it passes only together with the other ranks. No event says
//! that the rank has passed the point; the next event of the rank, whatever it is, shows this.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CollectiveOp, Event, IssuedCollectives, Phase};

/// A point that a rank passes only when the other ranks have come to the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Meeting {
    /// The start, where a rank that is ready joins the others.
    Start,
    /// The exchange of digests at the end of a step.
    Digests {
        /// The number of the optimizer step, from 0.
        step: usize,
    },
    /// A collective of the engine.
    Collective {
        /// The sequence number of the collective, which is the same on all ranks.
        sequence: u64,
        /// The operation of the collective.
        op: CollectiveOp,
    },
    /// A collective on a process group of a user's script.
    Group {
        /// The number of collectives that the rank has issued on the group, including this collective.
        issued: u64,
        /// The number of ranks of the group.
        ranks: usize,
    },
}

/// A rank that waits for others, with the meeting in which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// The number of the rank.
    pub rank: usize,
    /// The meeting in which the rank waits.
    pub meeting: Meeting,
}

/// The number of lines of meetings. The meetings of a line are counted in order. The first line has the start and the
/// exchanges of digests, the second line the collectives of the engine.
const LINES: usize = 2;

/// The number of the last meeting that a rank has come to on each line of meetings; `None` for a line without such a
/// meeting.
pub type Reached = [Option<u64>; LINES];

/// The progress of every rank along the lines of meetings.
#[derive(Clone, Debug)]
pub struct Meetings {
    ranks: Vec<Rank>,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    /// The meeting that the last event of the rank is about.
    at: Option<Meeting>,
    reached: Reached,
    /// The collectives that the rank has issued, if its last event reports them; otherwise empty.
    issued: Vec<IssuedCollectives>,
    /// True if the rank is done, so that no other rank waits for it any more.
    gone: bool,
}

impl Meeting {
    /// Returns the meeting that a rank has come to with this event.
    pub fn of(event: &Event) -> Option<Self> {
        match *event {
            Event::RankReady { .. } => Some(Self::Start),
            Event::PhaseEntered { step, phase: Phase::Digests, .. } => Some(Self::Digests { step }),
            Event::CollectiveEntered { sequence, op, .. } => {
                Some(Self::Collective { sequence, op })
            }
            _ => None,
        }
    }

    /// Returns the line of the meeting, and the number of the meeting on that line. Returns `None` for a collective
    /// of a group, because each group has its own line.
    fn place(self) -> Option<(usize, u64)> {
        match self {
            Self::Start => Some((0, 0)),
            Self::Digests { step } => Some((0, step as u64 + 1)),
            Self::Collective { sequence, .. } => Some((1, sequence)),
            Self::Group { .. } => None,
        }
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start => f.write_str("the start, where ranks join each other"),
            Self::Digests { step } => write!(f, "the exchange of digests of step {step}"),
            Self::Collective { sequence, op } => write!(f, "{op} {sequence}"),
            Self::Group { issued, ranks } => {
                write!(f, "collective {issued} of a process group of {ranks} ranks")
            }
        }
    }
}

impl Meetings {
    /// Creates the state of ranks that have not sent any event yet.
    pub fn new(ranks: usize) -> Self {
        Self { ranks: vec![Rank::default(); ranks] }
    }

    /// Adds ranks until there are `ranks` of them.
    pub fn grow(&mut self, ranks: usize) {
        self.ranks.resize(ranks.max(self.ranks.len()), Rank::default());
    }

    /// Notes an event of `rank`.
    pub fn see(&mut self, rank: usize, event: &Event) {
        let rank = &mut self.ranks[rank];
        rank.at = Meeting::of(event);
        rank.issued = match event {
            Event::CollectivesIssued { groups } => groups.clone(),
            _ => Vec::new(),
        };
        // A rank that sends any event has started, even if it did not report that it is ready.
        for meeting in [Some(Meeting::Start), rank.at].into_iter().flatten() {
            let Some((line, place)) = meeting.place() else { continue };
            rank.reached[line] = rank.reached[line].max(Some(place));
        }
    }

    /// Notes that `rank` has finished or ended, and comes to no further meeting.
    pub fn leave(&mut self, rank: usize) {
        self.ranks[rank].gone = true;
    }

    /// Returns, for each line, the last meeting that all ranks have come to, except for ranks that are done.
    pub fn reached_by_all(&self) -> Reached {
        let still_here = self.ranks.iter().filter(|rank| !rank.gone).map(|rank| rank.reached);
        let least = |one: Reached, other: Reached| [one[0].min(other[0]), one[1].min(other[1])];
        still_here.reduce(least).unwrap_or_default()
    }

    /// Returns the meeting that the last event of `rank` is about.
    pub fn at(&self, rank: usize) -> Option<Meeting> {
        self.ranks[rank].at
    }

    /// Returns the meeting in which `rank` waits for a rank that has not come to it. `by_all` is the result of
    /// [`Self::reached_by_all`].
    pub fn waits(&self, rank: usize, by_all: &Reached) -> Option<Meeting> {
        let is_ahead = |meeting: &Meeting| {
            meeting.place().is_some_and(|(line, place)| Some(place) > by_all[line])
        };
        self.at(rank).filter(is_ahead).or_else(|| self.waits_in_group(rank))
    }

    /// Returns the collective in which a silent rank waits for another silent rank of the same group that has not
    /// issued the collective.
    fn waits_in_group(&self, rank: usize) -> Option<Meeting> {
        let is_behind = |other: &Rank, group: &IssuedCollectives| {
            let mut own = other.issued.iter().filter(|it| it.ranks == group.ranks);
            !other.gone && own.any(|it| it.count < group.count)
        };
        let mut groups = self.ranks[rank].issued.iter();
        let group = groups.find(|group| {
            let others = group.ranks.iter().filter_map(|other| self.ranks.get(*other));
            others.into_iter().any(|other| is_behind(other, group))
        })?;
        Some(Meeting::Group { issued: group.count, ranks: group.ranks.len() })
    }

    /// Returns the line of the meeting that `rank` is in, as an index into [`Reached`].
    pub fn line(&self, rank: usize) -> Option<usize> {
        self.at(rank).and_then(|meeting| Some(meeting.place()?.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Event {
        Event::RankReady { versions: std::collections::BTreeMap::new(), device: "cpu".to_owned() }
    }

    fn collective(sequence: u64) -> Event {
        let op = CollectiveOp::AllReduce;
        Event::CollectiveEntered { sequence, op, dtype: "fp32".to_owned(), numel: 1 }
    }

    fn phase(phase: Phase) -> Event {
        Event::PhaseEntered { step: 0, microbatch: 0, phase }
    }

    /// Returns the ranks that wait after these events. Each event comes with its rank.
    fn waiting(ranks: usize, events: &[(usize, Event)]) -> Vec<usize> {
        let mut meetings = Meetings::new(ranks);
        for (rank, event) in events {
            meetings.see(*rank, event);
        }
        let by_all = meetings.reached_by_all();
        (0..ranks).filter(|&rank| meetings.waits(rank, &by_all).is_some()).collect()
    }

    #[test]
    fn who_has_come_to_a_meeting_waits_for_who_has_not() {
        assert_eq!(waiting(3, &[(0, ready()), (1, ready())]), [0, 1]);
        assert_eq!(waiting(2, &[(0, collective(4)), (1, collective(3))]), [0]);
        assert_eq!(waiting(2, &[(0, phase(Phase::Digests)), (1, phase(Phase::Reduce))]), [0]);
    }

    #[test]
    fn nobody_waits_where_all_are_or_have_been() {
        assert!(waiting(2, &[(0, ready()), (1, phase(Phase::Forward))]).is_empty());
        assert!(waiting(2, &[(0, collective(4)), (1, collective(4))]).is_empty());
        assert_eq!(waiting(2, &[(0, collective(4)), (1, collective(5))]), [1]);
    }

    #[test]
    fn who_has_issued_more_collectives_waits_where_all_are_silent() {
        let issued = |count| Event::CollectivesIssued {
            groups: vec![IssuedCollectives { ranks: vec![0, 1], count }],
        };
        assert_eq!(waiting(2, &[(0, issued(8)), (1, issued(7))]), [0]);
        assert!(waiting(2, &[(0, issued(8)), (1, issued(8))]).is_empty());
        // In the next cases, rank 1 has continued, or issued a collective on another group.
        assert!(
            waiting(2, &[(0, issued(8)), (1, issued(7)), (1, phase(Phase::Backward))]).is_empty()
        );
        let other = IssuedCollectives { ranks: vec![1, 2], count: 1 };
        let other = Event::CollectivesIssued { groups: vec![other] };
        assert!(waiting(3, &[(0, issued(8)), (1, other)]).is_empty());
    }

    #[test]
    fn who_says_something_else_has_left_the_meeting() {
        assert!(waiting(2, &[(0, collective(4)), (0, phase(Phase::Backward))]).is_empty());
    }

    #[test]
    fn nobody_waits_for_who_is_done() {
        let mut meetings = Meetings::new(3);
        meetings.see(0, &collective(2));
        meetings.see(1, &collective(2));
        assert!(meetings.waits(0, &meetings.reached_by_all()).is_some());
        meetings.leave(2);
        assert!(meetings.waits(0, &meetings.reached_by_all()).is_none());
    }
}
