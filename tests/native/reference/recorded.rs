//! The records of a run that the comparison needs: the run's inputs, and the weights after its steps.

use std::collections::BTreeMap;

use zprobe_model::spec::plan::Segment;
use zprobe_model::spec::{Dtype, Plan, Point};
use zprobe_model::trace::{Event, LayoutName, Payload, Trace};

/// The weights after a step: of all parameters, or of a rank's partition.
pub struct Weights {
    pub step: usize,
    pub rank: usize,
    pub point: Point,
    pub dtype: Dtype,
    /// Indices of elements in the flat order, each with the element's value.
    pub values: Vec<(usize, f64)>,
}

/// The inputs and weights of a run.
pub struct Recorded {
    /// The parameters before the first step, in flat order.
    pub initial: Vec<f64>,
    /// The class of the optimizer that the engine chose.
    pub class: String,
    /// The versions of the packages.
    pub versions: BTreeMap<String, String>,
    /// The master weights and parameters of every rank after each step.
    pub weights: Vec<Weights>,
    local: BTreeMap<(usize, usize, usize), Vec<f64>>,
}

impl Recorded {
    /// Reads the inputs and weights from a trace.
    ///
    /// # Panics
    /// If the trace lacks a record that every whole run has.
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

    /// The gradient of a microbatch as autograd computed it, in flat order.
    pub fn local(&self, step: usize, rank: usize, microbatch: usize) -> &[f64] {
        &self.local[&(step, rank, microbatch)]
    }

    /// The parameters of a rank after the last step, in fp64.
    pub fn last(&self, rank: usize) -> Vec<f64> {
        let mine = self.weights.iter().filter(|w| (w.point, w.rank) == (Point::Parameters, rank));
        let last = mine.max_by_key(|weights| weights.step).expect("parameters of every rank");
        last.values.iter().map(|(_, value)| *value).collect()
    }
}

fn values(payload: &Payload) -> Vec<f64> {
    payload.values().expect("a buffer that can be read")
}

/// Each value with its index in the flat order; values of padding are left out.
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
