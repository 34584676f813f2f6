//! The rank's side of the trace: events as JSON lines on the rank's own channel.

use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use tch::{Kind, Tensor};
use zprobe_model::spec::{Observation, RunSpec};
use zprobe_model::trace::{Event, LayoutName, PROTOCOL_VERSION, Payload, Point, Record};

use crate::dtype::dtype_of;
use crate::sampler::Sampler;

/// Writer of the records of one sender.
pub struct Recorder {
    run: String,
    rank: Option<usize>,
    next: Cell<u64>,
    channel: RefCell<File>,
    digests: RefCell<Vec<String>>,
    spec: OnceCell<RunSpec>,
    sampler: RefCell<Option<Sampler>>,
}

/// Flat tensors that follow one another in a buffer.
pub struct Pieces {
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The element type that they are recorded as.
    pub kind: Kind,
    /// The number that they are divided by first.
    pub scale: f64,
}

impl Pieces {
    /// A single flat tensor, unscaled.
    pub fn whole(tensor: &Tensor) -> Self {
        Self { tensors: vec![tensor.detach()], kind: tensor.kind(), scale: 1.0 }
    }

    /// Gradients that carry a loss scale, to be recorded without it. Scales are powers of two, so
    /// that the division is exact in fp32.
    pub fn unscaled(self, scale: f64) -> Self {
        let kind = if scale == 1.0 { self.kind } else { Kind::Float };
        Self { kind, scale, ..self }
    }
}

/// The place in the run at which a buffer was read.
#[derive(Clone, Copy)]
pub struct At {
    /// Optimizer step; none before the first.
    pub step: Option<usize>,
    /// Microbatch, inside the accumulation.
    pub microbatch: Option<usize>,
    /// Point of the gradient's journey.
    pub point: Point,
    /// The layout of the buffer.
    pub layout: LayoutName,
}

impl Recorder {
    /// A recorder for `rank`, or for the rank host itself, on `channel`.
    pub fn new(run: String, rank: Option<usize>, channel: File) -> Self {
        Self {
            run,
            rank,
            next: Cell::new(0),
            channel: RefCell::new(channel),
            digests: RefCell::default(),
            spec: OnceCell::new(),
            sampler: RefCell::default(),
        }
    }

    /// Sets what is recorded from here on: how much is observed, and the samples of buffers that
    /// are too large. Emits the layouts of these samples, to follow the layouts that they are part
    /// of.
    pub fn settle(&self, spec: &RunSpec, sampler: Option<Sampler>) -> Result<()> {
        self.spec.get_or_init(|| spec.clone());
        for (layout, samples) in sampler.iter().flat_map(Sampler::layouts) {
            let segments = samples.segments.clone();
            self.emit(Event::Layout { layout, segments, sampled: true })?;
        }
        self.sampler.replace(sampler);
        Ok(())
    }

    /// True if buffers of a point are recorded.
    pub fn wants(&self, point: Point) -> bool {
        let observes = |spec: &RunSpec| spec.observe == Observation::Full;
        self.spec.get().is_none_or(observes) || point == Point::Parameters
    }

    /// True if a buffer is recorded at this place of the run.
    fn wants_at(&self, at: &At) -> bool {
        let records = |spec: &RunSpec| {
            at.step.is_none_or(|step| spec.records_point(at.point, step, at.microbatch))
        };
        self.wants(at.point) && self.spec.get().is_none_or(records)
    }

    /// True if a buffer's content is recorded, and not only its digest and norm.
    fn wants_content(&self, point: Point) -> bool {
        let (Some(spec), Some(rank)) = (self.spec.get(), self.rank) else { return true };
        spec.records_content(point, rank)
    }

    /// Writes one event immediately and in one piece, so that it survives the death of this
    /// process.
    pub fn emit(&self, event: Event) -> Result<()> {
        let record = Record {
            v: PROTOCOL_VERSION,
            run: self.run.clone(),
            rank: self.rank,
            seq: self.next.replace(self.next.get() + 1),
            t_ns: now_ns(),
            event,
        };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        self.write_raw(&line)
    }

    /// Writes bytes as they are.
    pub fn write_raw(&self, line: &[u8]) -> Result<()> {
        self.channel.borrow_mut().write_all(line).context("the launcher closed the event channel")
    }

    /// Records a buffer bit for bit, or the part of it that is to be recorded, and remembers its
    /// digest for the in-band exchange.
    pub fn buffer(&self, at: At, pieces: &Pieces) -> Result<()> {
        if !self.wants_at(&at) {
            return Ok(());
        }
        let dtype = dtype_of(pieces.kind)?;
        let finish = |tensor: &Tensor| match pieces.scale {
            1.0 => tensor.to_kind(pieces.kind),
            scale => tensor.to_kind(pieces.kind) / scale,
        };
        let (flat, norm) = match &*self.sampler.borrow() {
            Some(sampler) => {
                let (picked, norm) = sampler.pick(at.layout, &pieces.tensors)?;
                (finish(&picked).contiguous(), norm / pieces.scale)
            }
            None => {
                let flat: Vec<Tensor> = pieces.tensors.iter().map(finish).collect();
                let flat = Tensor::f_cat(&flat, 0)?;
                let norm = flat.to_kind(Kind::Double).norm().double_value(&[]);
                (flat, norm)
            }
        };
        let mut bytes = vec![0; flat.numel() * dtype.size()];
        flat.f_copy_data_u8(&mut bytes, flat.numel())?;
        let mut payload = Payload::new(dtype, &bytes, norm);
        if !self.wants_content(at.point) {
            payload = payload.without_content();
        }
        self.digests.borrow_mut().push(payload.digest.clone());
        let At { step, microbatch, point, layout } = at;
        self.emit(Event::Buffer { step, microbatch, point, layout, payload })
    }

    /// Digests of the buffers recorded since the last call.
    pub fn take_digests(&self) -> Vec<String> {
        self.digests.take()
    }
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
