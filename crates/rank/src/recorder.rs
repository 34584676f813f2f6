//! Writes the events of a rank as JSON lines to the rank's own channel.

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

/// The writer of the records of one rank, or of the rank host.
pub struct EventRecorder {
    run: String,
    rank: Option<usize>,
    next: Cell<u64>,
    channel: RefCell<File>,
    digests: RefCell<Vec<String>>,
    spec: OnceCell<RunSpec>,
    sampler: RefCell<Option<Sampler>>,
}

/// The flat tensors that make up a buffer, one after the other.
pub struct BufferPieces {
    /// The flat tensors, in the order of the buffer.
    pub tensors: Vec<Tensor>,
    /// The element type in which the tensors are recorded.
    pub kind: Kind,
    /// The divisor of the recorded values: the loss scale, or 1.
    pub scale: f64,
}

impl BufferPieces {
    /// A buffer of a single flat tensor, which is recorded without a division.
    pub fn whole(tensor: &Tensor) -> Self {
        Self { tensors: vec![tensor.detach()], kind: tensor.kind(), scale: 1.0 }
    }

    /// Sets the loss scale by which the values are divided when they are recorded. Loss scales are powers of two, so
    /// the division is exact in fp32.
    pub fn unscaled(self, scale: f64) -> Self {
        let kind = if scale == 1.0 { self.kind } else { Kind::Float };
        Self { kind, scale, ..self }
    }
}

/// The place in the run at which a buffer was read.
#[derive(Clone, Copy)]
pub struct BufferPlace {
    /// The optimizer step, from 0; `None` before the first step.
    pub step: Option<usize>,
    /// The microbatch within the step, from 0; `None` outside of the accumulation.
    pub microbatch: Option<usize>,
    /// The point on the gradients' way from backward to the parameters.
    pub point: Point,
    /// The layout of the buffer.
    pub layout: LayoutName,
}

impl EventRecorder {
    /// Creates a recorder that writes to `channel`; `rank` is `None` for the rank host.
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

    /// Restricts the recording from now on: to the observations that `spec` asks for, and to the samples of large
    /// buffers. Emits the layouts of the samples, which must follow the layouts of the whole buffers.
    pub fn settle(&self, spec: &RunSpec, sampler: Option<Sampler>) -> Result<()> {
        self.spec.get_or_init(|| spec.clone());
        for (layout, samples) in sampler.iter().flat_map(Sampler::layouts) {
            let segments = samples.segments.clone();
            self.emit(Event::Layout { layout, segments, sampled: true })?;
        }
        self.sampler.replace(sampler);
        Ok(())
    }

    /// True if buffers are recorded at this point on the gradients' way from backward to the parameters.
    pub fn wants(&self, point: Point) -> bool {
        let observes = |spec: &RunSpec| spec.observe == Observation::Full;
        self.spec.get().is_none_or(observes) || point == Point::Parameters
    }

    /// True if a buffer is recorded at this point, step and microbatch.
    fn wants_at(&self, at: &BufferPlace) -> bool {
        let records = |spec: &RunSpec| {
            at.step.is_none_or(|step| spec.records_point(at.point, step, at.microbatch))
        };
        self.wants(at.point) && self.spec.get().is_none_or(records)
    }

    /// True if the content of buffers is recorded at this point, in addition to digest and norm.
    fn wants_content(&self, point: Point) -> bool {
        let (Some(spec), Some(rank)) = (self.spec.get(), self.rank) else { return true };
        spec.records_content(point, rank)
    }

    /// Writes an event at once and in one piece, so that the event is not lost if this process dies.
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

    /// Writes bytes to the channel without changes.
    pub fn write_raw(&self, line: &[u8]) -> Result<()> {
        self.channel.borrow_mut().write_all(line).context("the launcher closed the event channel")
    }

    /// Records a buffer or its samples bit for bit, and keeps the digest for the exchange with the other ranks.
    pub fn buffer(&self, at: BufferPlace, pieces: &BufferPieces) -> Result<()> {
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
        let BufferPlace { step, microbatch, point, layout } = at;
        self.emit(Event::Buffer { step, microbatch, point, layout, payload })
    }

    /// The digests of the buffers that were recorded since the last call.
    pub fn take_digests(&self) -> Vec<String> {
        self.digests.take()
    }
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
