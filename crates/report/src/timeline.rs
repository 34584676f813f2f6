//! The timeline of every rank: its phases and collectives, from the times in the trace.

use zprobe_model::trace::{CollectiveOp, Event, Outcome, Phase, Record, Trace};

/// The timeline of every rank. Times are in nanoseconds since the first record: those of the senders' clocks, corrected
/// to the clock of rank 0's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The earliest time of any record, in nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// The length of the recording, in nanoseconds; 0 for a trace without times.
    pub length_ns: u64,
    /// The lanes of the ranks, by rank.
    pub lanes: Vec<Lane>,
    /// The times of all records, ascending and without duplicates.
    pub moments: Vec<u64>,
}

/// The timeline of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// The phases of the rank, in order and without overlap.
    pub spans: Vec<PhaseSpan>,
    /// The collectives that the rank entered, in order.
    pub calls: Vec<Call>,
    /// The time at which the rank's process was gone, and its outcome; `None` if the trace has no end of the process.
    pub end: Option<(u64, Outcome)>,
    /// True if the rank completed all of its work.
    pub finished: bool,
}

/// A phase of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseSpan {
    /// The step, the microbatch and the phase; `None` for the start-up of the rank.
    pub what: Option<(usize, usize, Phase)>,
    /// The time at which the phase began.
    pub from: u64,
    /// The time at which the next phase began or the rank ended.
    pub to: u64,
}

/// A collective on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation of the collective.
    pub op: CollectiveOp,
    /// The time at which the rank entered the collective.
    pub from: u64,
    /// The time of the rank's next event, by which it had left the collective; without a next event, the time at which
    /// the rank ended.
    pub to: u64,
}

impl Timeline {
    /// Makes the timeline from the records of a trace.
    pub fn new(trace: &Trace) -> Self {
        let clocks = Clocks::of(trace);
        let times = || trace.records.iter().map(|record| clocks.time(record));
        let start_ns = times().min().unwrap_or(0);
        let length_ns = times().max().unwrap_or(0) - start_ns;
        let mut open = vec![Open::default(); trace.spec.world_size];
        for record in &trace.records {
            let t = clocks.time(record) - start_ns;
            match (&record.event, record.rank) {
                (Event::RankExited { rank, outcome }, None) => {
                    if let Some(open) = open.get_mut(*rank) {
                        open.lane.end = Some((t, *outcome));
                    }
                }
                (event, Some(rank)) => {
                    if let Some(open) = open.get_mut(rank) {
                        open.see(t, event);
                    }
                }
                _ => {}
            }
        }
        let mut moments: Vec<u64> = times().map(|t| t - start_ns).collect();
        moments.sort_unstable();
        moments.dedup();
        let lanes = open.into_iter().map(|open| open.close(length_ns)).collect();
        Self { start_ns, length_ns, lanes, moments }
    }
}

/// The differences between the clocks of the ranks' machines.
pub(crate) struct Clocks {
    /// By rank, the time in nanoseconds by which the rank's clock is ahead of the clock of rank 0.
    ahead_ns: Vec<i64>,
}

impl Clocks {
    pub fn of(trace: &Trace) -> Self {
        let mut ahead_ns = vec![0; trace.spec.world_size];
        for record in &trace.records {
            if let Event::AgentJoined { first_rank, ranks, clock_ns, .. } = record.event {
                ahead_ns.iter_mut().skip(first_rank).take(ranks).for_each(|it| *it = clock_ns);
            }
        }
        Self { ahead_ns }
    }

    /// The time of a record on the clock of rank 0, in nanoseconds since the Unix epoch.
    pub fn time(&self, record: &Record) -> u64 {
        let rank = match record.event {
            Event::RankSpawned { rank, .. } | Event::RankExited { rank, .. } => Some(rank),
            _ => record.rank,
        };
        let ahead = rank.and_then(|rank| self.ahead_ns.get(rank)).copied().unwrap_or(0);
        record.t_ns.saturating_add_signed(ahead.saturating_neg())
    }
}

/// A lane that is still being built while the trace is read.
#[derive(Clone, Default)]
struct Open {
    lane: Lane,
    /// True if the last span has no end yet; `in_call` is true if the last call has no end yet.
    in_span: bool,
    in_call: bool,
}

impl Open {
    fn see(&mut self, t: u64, event: &Event) {
        if self.lane.spans.is_empty() {
            self.lane.spans.push(PhaseSpan { what: None, from: 0, to: t });
            self.in_span = true;
        }
        if std::mem::take(&mut self.in_call) {
            self.end_call(t);
        }
        match event {
            Event::PhaseEntered { step, microbatch, phase } => {
                self.end_span(t);
                self.lane.spans.push(PhaseSpan {
                    what: Some((*step, *microbatch, *phase)),
                    from: t,
                    to: t,
                });
                self.in_span = true;
            }
            Event::CollectiveEntered { op, .. } => {
                self.lane.calls.push(Call { op: *op, from: t, to: t });
                self.in_call = true;
            }
            Event::Finished => {
                self.end_span(t);
                self.lane.finished = true;
            }
            _ => {}
        }
    }

    fn end_span(&mut self, t: u64) {
        if let (true, Some(span)) = (std::mem::take(&mut self.in_span), self.lane.spans.last_mut())
        {
            span.to = t.max(span.from);
        }
    }

    fn end_call(&mut self, t: u64) {
        if let Some(call) = self.lane.calls.last_mut() {
            call.to = t.max(call.from);
        }
    }

    /// Ends the phase and the collective in which the rank ended, and returns the finished lane.
    fn close(mut self, length_ns: u64) -> Lane {
        let end = self.lane.end.map_or(length_ns, |(t, _)| t);
        self.end_span(end);
        if std::mem::take(&mut self.in_call) {
            self.end_call(end);
        }
        self.lane
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn timeline(name: &str) -> Timeline {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/traces");
        Timeline::new(&Trace::read(&root.join(name)).unwrap())
    }

    #[test]
    fn phases_of_a_rank_follow_each_other_without_a_gap() {
        for lane in timeline("clean-stage-3").lanes {
            assert!(lane.finished && lane.spans.len() > 10);
            assert!(lane.spans.windows(2).all(|pair| pair[0].to == pair[1].from));
        }
    }

    #[test]
    fn a_rank_that_hangs_in_a_collective_is_in_it_until_it_is_ended() {
        let timeline = timeline("rank-hangs");
        let lane = &timeline.lanes[0];
        let call = lane.calls.last().unwrap();
        assert_eq!((call.op, call.to), (CollectiveOp::AllReduce, lane.end.unwrap().0));
        assert!(call.to - call.from > 1_000_000_000, "the watchdog waited for two seconds");
        assert!(!lane.finished);
    }

    #[test]
    fn a_collective_ends_before_the_ranks_next_event() {
        let timeline = timeline("clean-accumulator");
        for lane in &timeline.lanes {
            for pair in lane.calls.windows(2) {
                assert!(pair[0].from <= pair[0].to && pair[0].to <= pair[1].from);
            }
        }
    }
}
