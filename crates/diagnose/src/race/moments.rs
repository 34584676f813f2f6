//! Moments of a run whose recorded values can be compared bit for bit.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::observed::Observed;
use zprobe_model::trace::{Event, LayoutName, Payload, Point, Trace};

/// The time at which a rank recorded a value. Moments are ordered as in the run, and moments of the same time by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedAt {
    /// The index of the optimizer step; `None` before the first step.
    pub step: Option<usize>,
    /// The microbatch in which the value was recorded, or the part of the step after the last microbatch.
    microbatch: Inside,
    /// The kind of the recorded value.
    pub what: ValueKind,
    /// The index of the value among the values of the same kind in the microbatch: a loss may go backward in parts.
    occurrence: usize,
    /// The rank that recorded the value.
    pub rank: usize,
}

/// A part of a step: one of its microbatches, or the part after the last microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Inside {
    Microbatch(usize),
    Step,
}

/// The kind of a recorded value, in the order in which a step produces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueKind {
    /// The loss of a microbatch.
    Loss,
    /// A buffer with gradients, recorded at this point.
    Gradient(Point),
    /// The loss scale, or whether the step was skipped.
    LossScale,
    /// The global norm of the gradient that the engine computed.
    GradientNorm,
    /// A buffer with weights, recorded at this point.
    Weights(Point),
}

/// A recorded value that can be compared.
#[derive(Clone, Copy, Debug)]
pub enum RecordedValue<'a> {
    /// A number, which is compared bit for bit; `None` if it is not finite.
    Number(Option<f64>),
    /// A buffer, with its layout.
    Buffer(LayoutName, &'a Payload),
}

impl RecordedAt {
    /// Returns the microbatch of the moment; `None` for a moment after the accumulation.
    pub fn microbatch(&self) -> Option<usize> {
        match self.microbatch {
            Inside::Microbatch(microbatch) => Some(microbatch),
            Inside::Step => None,
        }
    }

    /// True if both moments are the same except for the rank.
    pub fn is_beside(&self, other: &Self) -> bool {
        Self { rank: 0, ..*self } == Self { rank: 0, ..*other }
    }
}

impl ValueKind {
    /// Returns the kind as text.
    pub const fn describe(self) -> &'static str {
        match self {
            ValueKind::Loss => "loss",
            ValueKind::Gradient(point) | ValueKind::Weights(point) => point.describe(),
            ValueKind::LossScale => "loss scale",
            ValueKind::GradientNorm => "norm of the gradient",
        }
    }

    fn of(point: Point) -> Self {
        match point {
            Point::MasterWeights | Point::Parameters => ValueKind::Weights(point),
            _ => ValueKind::Gradient(point),
        }
    }
}

impl RecordedValue<'_> {
    /// True if both values are the same to the last bit.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (RecordedValue::Number(one), RecordedValue::Number(two)) => {
                one.map(f64::to_bits) == two.map(f64::to_bits)
            }
            (RecordedValue::Buffer(_, one), RecordedValue::Buffer(_, two)) => {
                (one.dtype, one.numel, &one.digest) == (two.dtype, two.numel, &two.digest)
            }
            _ => false,
        }
    }
}

/// Returns all recorded values of a run, by moment.
pub fn moments(trace: &Trace) -> BTreeMap<RecordedAt, RecordedValue<'_>> {
    let mut moments = BTreeMap::new();
    for (sender, event) in trace.events() {
        let Some(rank) = sender else { continue };
        for (step, microbatch, what, left) in left_by(event) {
            let microbatch = microbatch.map_or(Inside::Step, Inside::Microbatch);
            let mut moment = RecordedAt { step, microbatch, what, occurrence: 0, rank };
            while moments.contains_key(&moment) {
                moment.occurrence += 1;
            }
            moments.insert(moment, left);
        }
    }
    moments
}

type TimedValue<'a> = (Option<usize>, Option<usize>, ValueKind, RecordedValue<'a>);

fn left_by(event: &Event) -> Vec<TimedValue<'_>> {
    match event {
        Event::Loss { step, microbatch, value } => {
            vec![(Some(*step), Some(*microbatch), ValueKind::Loss, RecordedValue::Number(*value))]
        }
        Event::Buffer { step, microbatch, point, layout, payload } => {
            vec![(
                *step,
                *microbatch,
                ValueKind::of(*point),
                RecordedValue::Buffer(*layout, payload),
            )]
        }
        Event::LossScaled { step, scale, overflow } => {
            let skipped = RecordedValue::Number(Some(f64::from(u8::from(*overflow))));
            let scale = RecordedValue::Number(Some(*scale));
            [scale, skipped].map(|left| (Some(*step), None, ValueKind::LossScale, left)).into()
        }
        Event::GradientNorm { step, norm, .. } => {
            vec![(Some(*step), None, ValueKind::GradientNorm, RecordedValue::Number(*norm))]
        }
        _ => Vec::new(),
    }
}

/// The elements in which two buffers differ, padding excluded.
#[derive(Clone, Debug, PartialEq)]
pub struct DifferingElements {
    /// The number of elements that differ.
    pub differing: usize,
    /// The number of elements that were compared.
    pub of: usize,
    /// The parameters with differing elements; empty if the layout is unknown.
    pub params: Vec<InParam>,
    /// The values of the first differing element, in the first and in the second buffer.
    pub first: (f64, f64),
}

/// The elements of one parameter that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InParam {
    /// The index of the parameter.
    pub param: usize,
    /// The index of the first differing element inside the parameter.
    pub first: usize,
    /// The index of the last differing element inside the parameter.
    pub last: usize,
    /// The number of elements that differ.
    pub count: usize,
}

/// Compares two buffers of the same moment. `None` if one cannot be read, or if they differ in dtype or size.
///
/// Padding is not compared, because DeepSpeed's stage 3 leaves the previous content of the memory in it.
pub fn elements(
    observed: &Observed<'_>,
    rank: usize,
    layout: LayoutName,
    one: &Payload,
    two: &Payload,
) -> Option<DifferingElements> {
    let (bytes, others) = (one.bytes().ok()?, two.bytes().ok()?);
    let size = one.dtype.size();
    if (one.dtype, one.numel) != (two.dtype, two.numel) {
        return None;
    }
    let differs = |at: &usize| bytes[at * size..][..size] != others[at * size..][..size];
    let mut elements =
        DifferingElements { differing: 0, of: 0, params: Vec::new(), first: (0.0, 0.0) };
    let mut first = None;
    let mut take = |param: Option<usize>, range: Range<usize>, offset: usize| {
        elements.of += range.len();
        let differing: Vec<usize> = range.clone().filter(differs).collect();
        let (Some(&low), Some(&high)) = (differing.first(), differing.last()) else { return };
        first = first.or(Some(low));
        elements.differing += differing.len();
        let place = |at: usize| at - range.start + offset;
        match elements.params.last_mut().filter(|it| Some(it.param) == param) {
            Some(known) => {
                (known.last, known.count) = (place(high), known.count + differing.len());
            }
            None => elements.params.extend(param.map(|param| InParam {
                param,
                first: place(low),
                last: place(high),
                count: differing.len(),
            })),
        }
    };
    match observed.model.recorded(rank, layout) {
        Some(segments) => {
            let mut start = 0;
            for segment in segments {
                let range = start..(start + segment.len).min(one.numel);
                start = range.end;
                if segment.param.is_some() {
                    take(segment.param, range, segment.offset);
                }
            }
            // Elements after the described layout are not padding.
            take(None, start..one.numel, 0);
        }
        None => take(None, 0..one.numel, 0),
    }
    if let Some(first) = first {
        elements.first = (one.values().ok()?[first], two.values().ok()?[first]);
    }
    Some(elements)
}
