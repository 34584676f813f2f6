//! Decides which records of ranks the trace stores, and which of these records it stores with their content.
//!
//! Ranks report everything that they do, so that the launcher always knows the point that each rank has reached.
//! Records that the [`Recording`](zprobe_model::spec::Recording) of the spec leaves out are not written, except for the
//! last records of a rank that ends in the part that is left out.

use zprobe_model::spec::{Point, RunSpec};
use zprobe_model::trace::{Contents, Event, LayoutName, Record};

/// The decision about a line of a rank.
pub(super) enum LineDecision {
    /// The line is written unchanged.
    Whole,
    /// This shorter line is written instead: the trace already has the content of the buffer or the list of digests,
    /// or has no room for it.
    WithoutContent(Vec<u8>),
    /// No line is written.
    LeftOut,
}

/// The state of the selection: the contents that were written so far, and the last lines that were left out.
pub(super) struct Selection {
    spec: RunSpec,
    bytes: u64,
    contents: Contents,
    ranks: Vec<RankPosition>,
}

/// The position of a rank in the run, and the last of its lines that the trace leaves out.
#[derive(Clone, Default)]
struct RankPosition {
    step: Option<usize>,
    microbatch: Option<usize>,
    /// The lines that were left out since the last written line: the last phase that the rank entered (`phase`), and
    /// the last line after that phase (`last`).
    phase: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
}

impl Selection {
    /// Creates the selection for a run of `spec` whose trace is still empty.
    pub(super) fn new(spec: &RunSpec) -> Self {
        let ranks = vec![RankPosition::default(); spec.world_size];
        Self { spec: spec.clone(), bytes: 0, contents: Contents::default(), ranks }
    }

    /// Adds ranks until the run has at least `ranks` ranks.
    pub(super) fn grow(&mut self, ranks: usize) {
        self.ranks.resize(ranks.max(self.ranks.len()), RankPosition::default());
    }

    /// Counts bytes that were written to the trace.
    pub(super) fn written(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Decides whether, and in which form, the line of a rank is written.
    pub(super) fn choose(&mut self, line: &[u8], record: &Record) -> LineDecision {
        let Some(rank) = record.rank.and_then(|rank| self.ranks.get_mut(rank)) else {
            return LineDecision::Whole;
        };
        let (step, microbatch) = record.event.moment();
        if step.is_some() {
            (rank.step, rank.microbatch) = (step, microbatch);
        }
        if is_left_out(&self.spec, rank, &record.event) {
            if matches!(record.event, Event::PhaseEntered { .. }) {
                (rank.phase, rank.last) = (Some(line.to_owned()), None);
            } else {
                rank.last = Some(line.to_owned());
            }
            return LineDecision::LeftOut;
        }
        (rank.phase, rank.last) = (None, None);
        self.shorten(line.len(), record).map_or(LineDecision::Whole, LineDecision::WithoutContent)
    }

    /// Returns the line of a record without the parts that the trace already has or has no room for, or `None` if the
    /// whole line is to be written.
    fn shorten(&mut self, length: usize, record: &Record) -> Option<Vec<u8>> {
        let known = self.contents.shortened(&record.event);
        let event = known.or_else(|| self.without_copy(length, &record.event))?;
        serde_json::to_vec(&Record { event, run: record.run.clone(), ..*record }).ok()
    }

    /// Returns a buffer event without its content if the buffer is a copy of the whole model and the size budget is
    /// used up.
    ///
    /// If several ranks hold the same copy, the trace stores it only once anyway. An optimizer consumes only the
    /// partition of its rank, and partitions are always kept.
    fn without_copy(&self, length: usize, event: &Event) -> Option<Event> {
        let is_full = self.bytes.saturating_add(length as u64) > self.spec.recording.room();
        match event {
            Event::Buffer { step, microbatch, point, layout: LayoutName::Full, payload }
                if is_full && payload.has_content() =>
            {
                Some(Event::Buffer {
                    step: *step,
                    microbatch: *microbatch,
                    point: *point,
                    layout: LayoutName::Full,
                    payload: payload.without_content(),
                })
            }
            _ => None,
        }
    }

    /// Returns the lines that were left out but must be kept, because `event` ends a rank or the run: the last lines
    /// of the ranks that `event` concerns.
    pub(super) fn last_words(&mut self, event: &Event) -> Vec<Vec<u8>> {
        let ranks = match event {
            Event::RankExited { rank, .. } => *rank..*rank + 1,
            Event::TimedOut { .. } | Event::Interrupted | Event::ProtocolViolated { .. } => {
                0..self.ranks.len()
            }
            _ => return Vec::new(),
        };
        let of = self.ranks.get_mut(ranks).into_iter().flatten();
        of.flat_map(|rank| [rank.phase.take(), rank.last.take()]).flatten().collect()
    }

    /// Returns the lines that were left out but must be kept, because their rank reports in `record` that it cannot
    /// continue.
    pub(super) fn before_failure(&mut self, record: &Record) -> Vec<Vec<u8>> {
        let failed = matches!(record.event, Event::Failed { .. });
        let rank = record.rank.filter(|_| failed).and_then(|rank| self.ranks.get_mut(rank));
        rank.into_iter().flat_map(|rank| [rank.phase.take(), rank.last.take()]).flatten().collect()
    }
}

/// Returns true if the trace leaves out `event` of a rank at the position `rank`.
fn is_left_out(spec: &RunSpec, rank: &RankPosition, event: &Event) -> bool {
    match event {
        // Ranks emit only the buffers that are to be recorded. The exchanged digests of these buffers are recorded in
        // the same steps as the buffers.
        Event::Buffer { .. } => return false,
        Event::DigestsGathered { step, .. } => {
            return !spec.records_point(Point::Parameters, *step, None);
        }
        // An overflow determines the weights of all later steps.
        Event::LossScaled { overflow: true, .. } => return false,
        // A script is watched for only a few steps, and its first step also shows facts about its loss and its
        // update.
        _ if spec.script().is_some() => return false,
        _ => {}
    }
    let is_inside = matches!(event, Event::CollectiveEntered { .. }) || event.moment().0.is_some();
    let outside = rank.step.is_some_and(|step| !spec.records_step(step))
        || rank.microbatch.is_some_and(|microbatch| !spec.records_microbatch(microbatch));
    is_inside && outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::{Dtype, Recording, SpecRequest};
    use zprobe_model::trace::{Payload, Phase};

    fn selection(recording: Recording) -> Selection {
        let spec = SpecRequest::default().resolve().expect("a valid request");
        Selection::new(&RunSpec { recording, ..spec })
    }

    fn record(event: Event) -> (Vec<u8>, Record) {
        let record = Record { v: 1, run: "r".to_owned(), rank: Some(0), seq: 0, t_ns: 0, event };
        (serde_json::to_vec(&record).expect("a record"), record)
    }

    fn phase(step: usize) -> (Vec<u8>, Record) {
        record(Event::PhaseEntered { step, microbatch: 3, phase: Phase::Backward })
    }

    fn buffer(layout: LayoutName) -> (Vec<u8>, Record) {
        let payload = Payload::new(Dtype::Fp32, &[1; 64], 1.0);
        let point = Point::BeforeStep;
        record(Event::Buffer { step: Some(0), microbatch: None, point, layout, payload })
    }

    fn is_whole(selection: &mut Selection, (line, record): &(Vec<u8>, Record)) -> bool {
        matches!(selection.choose(line, record), LineDecision::Whole)
    }

    #[test]
    fn a_step_that_is_not_recorded_leaves_only_the_last_words_of_a_rank_that_ends_in_it() {
        let mut selection = selection(Recording { steps: Some(vec![0]), ..Recording::default() });
        assert!(is_whole(&mut selection, &phase(0)));
        let last = phase(1);
        assert!(!is_whole(&mut selection, &last));
        let end = Event::TimedOut { silent: vec![0], timeout_s: 1, waiting: Default::default() };
        assert_eq!(selection.last_words(&end), [last.0]);
        assert!(selection.last_words(&end).is_empty(), "they are written once");
    }

    #[test]
    fn content_is_written_once() {
        let mut selection = selection(Recording::default());
        let first = buffer(LayoutName::Full);
        assert!(is_whole(&mut selection, &first));
        let LineDecision::WithoutContent(line) = selection.choose(&first.0, &first.1) else {
            panic!("the same content was written again");
        };
        assert!(line.len() < first.0.len());
    }

    #[test]
    fn copies_of_the_model_make_way_for_what_optimizers_consume_when_the_budget_is_used_up() {
        for (layout, is_kept) in [(LayoutName::Full, false), (LayoutName::Partition, true)] {
            let mut selection = selection(Recording::within(1000));
            selection.written(1000);
            assert_eq!(is_whole(&mut selection, &buffer(layout)), is_kept, "{layout}");
        }
    }
}
