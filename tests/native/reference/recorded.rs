//! The records of a run that the comparison needs: its inputs, and the weights after its steps.

use std::collections::BTreeMap;

use zprobe_model::spec::plan::Segment;
use zprobe_model::spec::{Dtype, Plan, Point};
use zprobe_model::trace::{Event, LayoutName, Payload, Trace};

/// Weights after a step: of all parameters, or of a rank's partition.
pub struct Weights {
    pub step: usize,
    pub rank: usize,
    pub point: Point,
    pub dtype: Dtype,
    /// Elements of the flat order, and their values.
    pub values: Vec<(usize, f64)>,
}

/// Inputs and weights of a run.
pub struct Recorded {
    /// Parameters before the first step, in flat order.
    pub initial: Vec<f64>,
    /// Class of the optimizer that the engine chose.
    pub class: String,
    /// Versions of the packages.
    pub versions: BTreeMap<String, String>,
    /// Master weights and parameters after each step, of every rank.
    pub weights: Vec<Weights>,
    local: BTreeMap<(usize, usize, usize), Vec<f64>>,
}

impl Recorded {
    /// Reads a trace.
    ///
    /// # Panics
    /// When the trace lacks a record that every whole run has.
    pub fn of(trace: &Trace) -> Self {
        let plan = Plan::new(&trace.spec);
        let mut layouts: BTreeMap<(usize, LayoutName), &[Segment]> = BTreeMap::new();
        let mut recorded = Self {
            initial: Vec::new(),
            class: String::new(),
            versions: BTreeMap::new(),
            weights: Vec::new(),
            local: BTreeMap::new(),
        };
        let (mut finished, mut last) = (0, None);
        for (rank, event) in trace.events() {
            let Some(rank) = rank else { continue };
            last = Some(event);
            match event {
                Event::RankReady { versions, .. } => recorded.versions = versions.clone(),
                Event::Layout { layout, segments, sampled } => {
                    assert!(!sampled, "a small model is recorded whole");
                    layouts.insert((rank, *layout), segments);
                }
                Event::OptimizerChosen { class, .. } => recorded.class = class.clone(),
                Event::Buffer { step: None, point: Point::Parameters, payload, .. } => {
                    recorded.initial = values(payload);
                }
                Event::Buffer { step: Some(step), microbatch, point, layout, payload } => {
                    let at = layouts.get(&(rank, *layout)).expect("a layout comes first");
                    match (point, microbatch) {
                        (Point::LocalGradient, Some(microbatch)) => {
                            let at = (*step, rank, *microbatch);
                            recorded.local.insert(at, values(payload));
                        }
                        (Point::MasterWeights | Point::Parameters, _) => {
                            recorded.weights.push(Weights {
                                step: *step,
                                rank,
                                point: *point,
                                dtype: payload.dtype,
                                values: placed(&plan, at, &values(payload)),
                            });
                        }
                        _ => {}
                    }
                }
                Event::Finished => finished += 1,
                _ => {}
            }
        }
        let ranks = trace.spec.world_size;
        assert_eq!(finished, ranks, "not every rank came to its end: {last:?} {:?}", trace.spec);
        recorded
    }

    /// The gradient of a microbatch, as autograd gave it.
    pub fn local(&self, step: usize, rank: usize, microbatch: usize) -> &[f64] {
        &self.local[&(step, rank, microbatch)]
    }

    /// Parameters of a rank after the last step, in fp64.
    pub fn last(&self, rank: usize) -> Vec<f64> {
        let mine = self.weights.iter().filter(|w| (w.point, w.rank) == (Point::Parameters, rank));
        let last = mine.max_by_key(|weights| weights.step).expect("parameters of every rank");
        last.values.iter().map(|(_, value)| *value).collect()
    }
}

fn values(payload: &Payload) -> Vec<f64> {
    payload.values().expect("a buffer that can be read")
}

/// Each value with its place in the flat order; padding has none.
fn placed(plan: &Plan, layout: &[Segment], values: &[f64]) -> Vec<(usize, f64)> {
    let mut placed = Vec::new();
    let mut start = 0;
    for segment in layout {
        if let Some(param) = segment.param {
            let first = plan.params()[param].offset + segment.offset;
            let range = start..start + segment.len;
            placed.extend((first..first + segment.len).zip(values[range].iter().copied()));
        }
        start += segment.len;
    }
    assert_eq!(start, values.len(), "a layout covers its buffer");
    placed
}
