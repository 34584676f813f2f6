//! A simulated correct engine: the trace that it would leave, for any number of ranks and microbatches, any
//! shapes, and any way to cut the model.
//!
//! The simulation knows the codes and the flat order. It computes by itself which gradients should reach
//! which optimizer, so that the plan of the diagnosis is checked and not repeated. Tests change a weight, or
//! edit records afterwards, and check the findings. With thousands of ranks ([`Simulation::large`]) single
//! weights cannot be changed.

mod cut;

use std::collections::BTreeMap;
use std::sync::Arc;

use half::{bf16, f16};
use zprobe_model::spec::code::Code;
use zprobe_model::spec::plan::{Param, Segment};
use zprobe_model::spec::{Dtype, Plan, RunSpec, Shape, SpecRequest};
use zprobe_model::trace::{
    CollectiveOp, Event, LayoutName, Outcome, PROTOCOL_VERSION, ParamInfo, Payload, Phase, Point,
    Record, Trace, combined_digest,
};
use zprobe_report::Report;

pub use self::cut::Cut;

/// One gradient in one element of one rank's optimizer.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The step that the optimizer takes.
    pub step: usize,
    /// The rank of the optimizer.
    pub owner: usize,
    /// The name of the parameter.
    pub param: &'a str,
    /// The element's index in the flat order.
    pub element: usize,
    /// The step, the rank and the microbatch of the gradient.
    pub source: (usize, usize, usize),
}

type Weight = Box<dyn Fn(Place<'_>, f64) -> f64>;
type Overflow = Box<dyn Fn(usize, usize, bool) -> bool>;

/// The loss scale of fp16 runs.
pub const LOSS_SCALE: f64 = 64.0;

/// A run of a correct engine, with the changes that a test makes.
pub struct Simulation {
    /// The specification of the run.
    pub spec: RunSpec,
    /// The parameters and their places in the flat order.
    pub plan: Plan,
    /// The way in which the optimizers share the model.
    pub cut: Cut,
    /// The weight of a gradient, given the place and the right weight.
    pub weight: Weight,
    /// True if a rank sees an overflow in a step, given the step, the rank, and true for a real overflow.
    /// Used for fp16 only.
    pub overflow: Overflow,
    /// True if the ranks gather the digests of their buffers after each step over the engine's process group.
    pub gathers: bool,
    /// The averaged gradients by step and element. If not empty, they replace `weight` and its rounding.
    known: Vec<Vec<f32>>,
}

/// The number of elements of a sample of the parameters, and the number of samples of each parameter.
const SAMPLE: usize = 8;
const SAMPLES: usize = 10;

/// The elements in one rank's optimizer, with their master weights; `None` for padding.
struct State {
    held: Vec<(Option<usize>, f32)>,
}

impl Simulation {
    /// A correct engine with the settings of a request.
    pub fn new(request: SpecRequest, cut: Cut) -> Self {
        let spec = request.resolve().expect("a valid request");
        let plan = Plan::new(&spec);
        Self {
            spec,
            plan,
            cut,
            weight: Box::new(|_, right| right),
            overflow: Box::new(|_, _, right| right),
            gathers: false,
            known: Vec::new(),
        }
    }

    /// A correct engine with many ranks, in which the gradients of `lost`, given as (step, rank, microbatch),
    /// reach no optimizer. Every rank records samples of all parameters.
    ///
    /// Sums are whole numbers. They are exact if the numbers of ranks and microbatches are powers of two.
    pub fn large(request: SpecRequest, lost: &[(usize, usize, usize)]) -> Self {
        let mut simulation = Self::new(request, Cut::Flat);
        let (spec, code) = (&simulation.spec, simulation.code());
        let gradient = |step: usize| -> Vec<f32> {
            let mut sum = Vec::new();
            for param in simulation.plan.params() {
                let mut weights = vec![0.0; spec.contributions()];
                for rank in 0..spec.world_size {
                    for m in 0..spec.gradient_accumulation_steps {
                        let arrives = simulation.is_used(&param.name, step, rank, m)
                            && !lost.contains(&(step, rank, m));
                        weights[spec.column(step, rank, m)] = if arrives { 1.0 } else { 0.0 };
                    }
                }
                let values = code.encode(&weights, param.range());
                sum.extend(values.into_iter().map(|value| value as f32));
            }
            sum
        };
        simulation.known = (0..spec.steps).map(gradient).collect();
        simulation
    }

    /// The report on the trace of this run.
    pub fn report(&self) -> Report {
        zprobe_diagnose::diagnose(&self.trace())
    }

    /// The trace that this run leaves.
    pub fn trace(&self) -> Trace {
        let world = self.spec.world_size;
        let mut ranks: Vec<Vec<Event>> = (0..world).map(|rank| self.start(rank)).collect();
        let mut states: Vec<State> = (0..world).map(|rank| self.state(rank)).collect();
        self.record_weights(None, &states, &mut ranks);
        for step in 0..self.spec.steps {
            self.backwards(step, &mut ranks);
            self.step(step, &mut states, &mut ranks);
            if self.gathers {
                gather(step, &mut ranks);
            }
        }
        let spec = Box::new(self.spec.clone());
        let started = Event::RunStarted { spec, zprobe: "0.0.0".to_owned() };
        let mut records = vec![record(None, 0, started)];
        for (rank, events) in ranks.into_iter().enumerate() {
            for (seq, event) in events.into_iter().chain([Event::Finished]).enumerate() {
                event.fits(&self.spec).expect("a plausible event");
                records.push(record(Some(rank), seq, event));
            }
            let exited = Event::RankExited { rank, outcome: Outcome::Code(0) };
            records.push(record(None, rank + 1, exited));
        }
        Trace { spec: self.spec.clone(), records }
    }

    /// True if samples of the parameters are recorded.
    fn samples(&self) -> bool {
        !self.known.is_empty()
    }

    /// The segments that are recorded if parameters are sampled: the ends of each parameter, and some windows
    /// in between, the same on every rank.
    fn sampled(&self) -> Vec<Segment> {
        let of = |(index, param): (usize, &Param)| {
            let numel = param.numel();
            let segment = |offset: usize, len: usize| Segment::new(Some(index), offset, len);
            if numel <= SAMPLE * SAMPLES {
                return vec![segment(0, numel)];
            }
            let last = numel - SAMPLE;
            let place = |sample: usize| segment(last * sample / (SAMPLES - 1), SAMPLE);
            (0..SAMPLES).map(place).collect()
        };
        self.plan.params().iter().enumerate().flat_map(of).collect()
    }

    /// The parts of parameters that a rank's optimizer holds, in the order of the optimizer's buffer.
    fn partition(&self, rank: usize) -> Vec<Segment> {
        self.cut.partition(&self.plan, self.spec.world_size, rank)
    }

    /// The events of a rank before the first step.
    fn start(&self, rank: usize) -> Vec<Event> {
        let params = self.plan.params();
        let info = |param: &Param| ParamInfo {
            name: param.name.clone(),
            shape: param.shape.clone(),
            trainable: param.trainable,
            ranks: Vec::new(),
        };
        let whole = |(index, param): (usize, &Param)| Segment::new(Some(index), 0, param.numel());
        let mut events = vec![
            Event::RankReady {
                versions: texts([("deepspeed", "0.0.0"), ("torch", "2.11.0")]),
                device: "cpu".to_owned(),
            },
            Event::Model { params: params.iter().map(info).collect() },
            Event::Layout {
                layout: LayoutName::Full,
                segments: params.iter().enumerate().map(whole).collect(),
                sampled: false,
            },
            Event::OptimizerChosen { class: "Paper".to_owned(), inner: "SGD".to_owned() },
            Event::EngineDescribed {
                engine: None,
                facts: texts([("cut", &format!("{:?}", self.cut))]),
            },
            Event::NotObserved {
                what: "the accumulator".to_owned(),
                why: "as this engine is on paper".to_owned(),
            },
            Event::Layout {
                layout: LayoutName::Partition,
                segments: self.partition(rank),
                sampled: false,
            },
        ];
        if self.samples() {
            let (layout, segments) = (LayoutName::Full, self.sampled());
            events.push(Event::Layout { layout, segments, sampled: true });
        }
        events
    }

    /// The elements of the flat order that a rank's optimizer holds; `None` for padding.
    fn elements(&self, rank: usize) -> Vec<Option<usize>> {
        self.partition(rank)
            .iter()
            .flat_map(|segment| {
                let first = segment.param.map(|p| self.plan.params()[p].offset + segment.offset);
                (0..segment.len).map(move |i| first.map(|first| first + i))
            })
            .collect()
    }

    fn state(&self, rank: usize) -> State {
        let held = self.elements(rank).into_iter();
        State { held: held.map(|e| (e, e.map_or(0.0, |e| self.initial(e)))).collect() }
    }

    fn lr(&self) -> f32 {
        self.spec.optimizer.readable_lr().expect("an optimizer that can be read back") as f32
    }

    fn initial(&self, element: usize) -> f32 {
        f32::from(self.code().initial(element)) * self.lr()
    }

    fn code(&self) -> Code {
        Plan::code(&self.spec)
    }

    fn param_of(&self, element: usize) -> &Param {
        let mut params = self.plan.params().iter();
        params.find(|param| param.range().contains(&element)).expect("an element of the model")
    }

    /// True if a rank's loss of a microbatch depends on a parameter.
    fn is_used(&self, param: &str, step: usize, rank: usize, microbatch: usize) -> bool {
        let last = self.spec.gradient_accumulation_steps - 1;
        let about = |shape: &&Shape| **shape == Shape::Unmanaged || shape.is_about(param);
        self.spec.shapes.iter().filter(about).all(|shape| match shape {
            Shape::UnusedFirst | Shape::SkippedBlock => microbatch != 0,
            Shape::UnusedLast | Shape::DetachedBlock | Shape::Unmanaged => microbatch != last,
            Shape::UnusedAlternating => step.is_multiple_of(2),
            Shape::FrozenAlternating => !step.is_multiple_of(2),
            Shape::UnusedOnOddRanks => rank.is_multiple_of(2),
            Shape::UnusedOnEvenRanks => !rank.is_multiple_of(2),
            Shape::UnusedAlways | Shape::Frozen => false,
            _ => true,
        })
    }

    fn backwards(&self, step: usize, ranks: &mut [Vec<Event>]) {
        for (rank, events) in ranks.iter_mut().enumerate() {
            for microbatch in 0..self.spec.gradient_accumulation_steps {
                let params: Vec<usize> = (0..self.plan.params().len())
                    .filter(|&p| self.is_used(&self.plan.params()[p].name, step, rank, microbatch))
                    .collect();
                let mut fired = vec![0; self.plan.params().len()];
                for &param in &params {
                    fired[param] = 1;
                }
                let accumulate_grad_nodes = params.len();
                events.push(Event::PhaseEntered { step, microbatch, phase: Phase::Backward });
                events.push(Event::GraphWalked { step, microbatch, accumulate_grad_nodes, params });
                events.push(Event::HooksFired { step, microbatch, fired, arrived: None });
            }
        }
    }

    /// The averaged gradient in one element of one optimizer, with the roundings of fp32.
    pub fn gradient(&self, step: usize, owner: usize, element: usize) -> f32 {
        if let Some(known) = self.known.get(step) {
            return known[element];
        }
        let (world, ga) = (self.spec.world_size, self.spec.gradient_accumulation_steps);
        let (code, scale) = (self.code(), self.spec.contributions_per_step() as f32);
        let param = &self.param_of(element).name;
        let infinite = self.spec.has_shape(Shape::InfinityOnOneRank)
            && Shape::InfinityOnOneRank.param() == Some(param)
            && self.param_of(element).offset == element;
        let mut sum = 0.0;
        for rank in 0..world {
            let mut accumulated = 0.0;
            for source_step in 0..=step {
                for m in 0..ga {
                    let used = source_step == step && self.is_used(param, step, rank, m);
                    let source = (source_step, rank, m);
                    let place = Place { step, owner, param, element, source };
                    let weight = (self.weight)(place, if used { 1.0 } else { 0.0 }) as f32;
                    let value = code.value(self.spec.column(source_step, rank, m), element);
                    if weight != 0.0 {
                        accumulated += weight * (f32::from(value) * (scale / ga as f32));
                    }
                    if infinite && source == (0, world - 1, 0) && step == 0 {
                        accumulated = f32::INFINITY;
                    }
                }
            }
            sum += accumulated;
        }
        sum / world as f32
    }

    /// True if a rank skips a step.
    fn skips(&self, step: usize, rank: usize) -> bool {
        let infinite = step == 0 && self.spec.has_shape(Shape::InfinityOnOneRank);
        self.spec.dtype == Dtype::Fp16 && (self.overflow)(step, rank, infinite)
    }

    /// The norm of the whole gradient of a step, in fp32.
    fn norm(&self, step: usize) -> f32 {
        let owners: BTreeMap<usize, usize> = (0..self.spec.world_size)
            .flat_map(|rank| self.elements(rank).into_iter().flatten().map(move |e| (e, rank)))
            .collect();
        let squares = owners
            .into_iter()
            .map(|(element, owner)| f64::from(self.gradient(step, owner, element)).powi(2));
        squares.sum::<f64>().sqrt() as f32
    }

    fn step(&self, step: usize, states: &mut [State], ranks: &mut [Vec<Event>]) {
        let norm = self.norm(step);
        let limit = self.spec.gradient_clipping as f32;
        let factor = if limit > 0.0 { (limit / (norm + 1e-6)).min(1.0) } else { 1.0 };
        for (owner, (state, events)) in states.iter_mut().zip(ranks.iter_mut()).enumerate() {
            let boundary = self.spec.gradient_accumulation_steps - 1;
            let (phase, numel) = (Phase::OptimizerStep, self.plan.numel());
            let (op, dtype) = (CollectiveOp::AllReduce, self.spec.dtype.to_string());
            events.push(Event::CollectiveEntered { sequence: step as u64, op, dtype, numel });
            events.push(Event::PhaseEntered { step, microbatch: boundary, phase });
            let skips = self.skips(step, owner);
            if !skips {
                let gradients: Vec<f32> = state
                    .held
                    .iter()
                    .map(|(e, _)| e.map_or(0.0, |e| self.gradient(step, owner, e) * factor))
                    .collect();
                for ((_, weight), gradient) in state.held.iter_mut().zip(&gradients) {
                    *weight -= self.lr() * gradient;
                }
                let (point, layout) = (Point::OptimizerInput, LayoutName::Partition);
                events.push(buffer(Some(step), point, layout, Dtype::Fp32, &gradients));
            }
            if self.spec.dtype == Dtype::Fp16 {
                events.push(Event::LossScaled { step, scale: LOSS_SCALE, overflow: skips });
            }
            let norm = norm.is_finite().then_some(f64::from(norm));
            events.push(Event::GradientNorm { step, norm, limit: f64::from(limit) });
        }
        self.record_weights(Some(step), states, ranks);
    }

    fn record_weights(&self, step: Option<usize>, states: &[State], ranks: &mut [Vec<Event>]) {
        let numel = self.plan.numel();
        let mut whole: Vec<f32> = (0..numel).map(|element| self.initial(element)).collect();
        for state in states {
            for &(element, weight) in &state.held {
                if let Some(element) = element {
                    whole[element] = weight;
                }
            }
        }
        let places: Option<Vec<usize>> = self.samples().then(|| {
            let first = |segment: &Segment| {
                segment.param.map_or(0, |param| self.plan.params()[param].offset) + segment.offset
            };
            let places = self.sampled();
            places.iter().flat_map(|it| first(it)..first(it) + it.len).collect()
        });
        // The norm is the same on all ranks if each element has one owner.
        let whole_norm = norm(&whole);
        for (state, events) in states.iter().zip(ranks) {
            // A rank sees only its own updates of the elements that it holds.
            for &(element, weight) in &state.held {
                if let Some(element) = element {
                    whole[element] = weight;
                }
            }
            let held: Vec<f32> = state.held.iter().map(|&(_, weight)| weight).collect();
            let partition = LayoutName::Partition;
            events.push(buffer(step, Point::MasterWeights, partition, Dtype::Fp32, &held));
            let (full, dtype) = (LayoutName::Full, self.spec.dtype);
            events.push(match &places {
                None => buffer(step, Point::Parameters, full, dtype, &whole),
                Some(places) => {
                    let picked: Vec<f32> = places.iter().map(|&element| whole[element]).collect();
                    buffer_of(step, Point::Parameters, full, dtype, (&picked, whole_norm))
                }
            });
        }
    }
}

/// All-gathers the digests of the buffers that the ranks recorded since the last gathering.
fn gather(step: usize, ranks: &mut [Vec<Event>]) {
    let own = |events: &Vec<Event>| {
        let since = events.iter().rev();
        let since = since.take_while(|it| !matches!(it, Event::DigestsGathered { .. }));
        let digests = since.filter_map(|event| match event {
            Event::Buffer { payload, .. } => Some(&*payload.digest),
            _ => None,
        });
        combined_digest(digests.collect::<Vec<_>>().into_iter().rev())
    };
    let list = Arc::new(ranks.iter().map(own).collect::<Vec<String>>());
    for events in ranks {
        events.push(Event::DigestsGathered { step, digests: Arc::clone(&list) });
    }
}

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// The event of a whole buffer.
pub fn buffer(
    step: Option<usize>,
    point: Point,
    layout: LayoutName,
    dtype: Dtype,
    values: &[f32],
) -> Event {
    let payload = payload(dtype, &bytes(dtype, values));
    Event::Buffer { step, microbatch: None, point, layout, payload }
}

/// The payload of a whole buffer: its norm is that of its elements.
pub fn payload(dtype: Dtype, bytes: &[u8]) -> Payload {
    let values = Payload::new(dtype, bytes, 0.0).values().expect("whole elements");
    Payload::new(dtype, bytes, values.iter().map(|it| it * it).sum::<f64>().sqrt())
}

/// The event of a buffer with the given norm, which may be that of a larger buffer that was sampled.
fn buffer_of(
    step: Option<usize>,
    point: Point,
    layout: LayoutName,
    dtype: Dtype,
    (values, norm): (&[f32], f64),
) -> Event {
    let payload = Payload::new(dtype, &bytes(dtype, values), norm);
    Event::Buffer { step, microbatch: None, point, layout, payload }
}

fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let of = |&value: &f32| match dtype {
        Dtype::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::Fp16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::Fp32 => value.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(of).collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

fn record(rank: Option<usize>, seq: usize, event: Event) -> Record {
    let (run, seq) = ("simulated".to_owned(), seq as u64);
    Record { v: PROTOCOL_VERSION, run, rank, seq, t_ns: 0, event }
}
