//! Collectives, issued only after the ranks have agreed on what they are about to issue.
//!
//! Gloo aborts the process when sizes or dtypes differ between ranks, and silently adds up the
//! wrong tensors when two operations of equal size are swapped; NCCL hangs, or does the same. So
//! before each collective every rank announces (operation, dtype, elements, purpose) under the
//! collective's sequence number in the TCPStore, and compares the announcements of all ranks.

mod alone;
mod gloo;
mod nccl;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tch::{Device, Tensor};
use zprobe_model::spec::{Backend, RunSpec};
use zprobe_model::trace::{CollectiveOp, Event};

pub use self::alone::Alone;
use self::gloo::Gloo;
use self::nccl::Nccl;
use crate::dtype::dtype_name;
use crate::recorder::Recorder;
use crate::shim::c10d::Store;

/// An operation that all ranks of a group take part in, and its tensors.
#[derive(Clone, Copy)]
pub enum Collective<'a> {
    /// Sums a tensor over all ranks, in place.
    AllReduce(&'a Tensor),
    /// Sums a tensor over all ranks, in place on one of them; elsewhere its content is unspecified.
    Reduce {
        /// This rank's addend.
        tensor: &'a Tensor,
        /// The rank that the sum is for.
        root: usize,
    },
    /// Sums a tensor over all ranks, and cuts the sum into equal parts.
    ReduceScatter {
        /// This rank's part of the sum.
        output: &'a Tensor,
        /// This rank's addend, `world_size` times as long.
        input: &'a Tensor,
    },
    /// Concatenates the tensors of all ranks.
    AllGather {
        /// The tensors of all ranks, `world_size` times as long as one of them.
        output: &'a Tensor,
        /// The tensor of this rank.
        input: &'a Tensor,
    },
}

impl Collective<'_> {
    fn op(&self) -> CollectiveOp {
        match self {
            Self::AllReduce(_) => CollectiveOp::AllReduce,
            Self::Reduce { .. } => CollectiveOp::Reduce,
            Self::ReduceScatter { .. } => CollectiveOp::ReduceScatter,
            Self::AllGather { .. } => CollectiveOp::AllGather,
        }
    }

    /// The tensor that this rank puts in.
    pub fn input(&self) -> &Tensor {
        match self {
            Self::AllReduce(tensor) | Self::Reduce { tensor, .. } => tensor,
            Self::ReduceScatter { input, .. } | Self::AllGather { input, .. } => input,
        }
    }
}

/// Ranks that work together. Every rank starts the same collectives in the same order.
pub trait Collectives {
    /// Starts a collective; `purpose` says what its tensors hold.
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<Pending>;

    /// Runs a collective to its end.
    fn run(&self, collective: Collective<'_>, purpose: &str) -> Result<()> {
        self.start(collective, purpose)?.wait()
    }
}

/// The address at which the ranks meet.
pub struct Rendezvous {
    /// Host of the TCPStore.
    pub host: String,
    /// Port of the TCPStore.
    pub port: u16,
    /// The listening socket, on the rank that hosts the store.
    pub listener: Option<OwnedFd>,
    /// The network interface over which Gloo reaches the other ranks.
    pub interface: String,
}

/// A backend, connected to all ranks. Operations are started in the same order on every rank.
trait Group {
    /// Starts to sum `tensor` over all ranks, in place.
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Work>>;

    /// Starts to sum `tensor` over all ranks, in place on rank `root`; elsewhere its content is
    /// unspecified.
    fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>>;

    /// Starts to sum `input` over all ranks; `output` is this rank's part of the sum.
    fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>>;

    /// Starts to concatenate the ranks' `input` in `output`.
    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>>;
}

/// An operation of a backend that was started, with the tensors that it uses.
trait Work {
    /// Waits until all later work of this rank, on its device, sees the result.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// The process group of one rank.
pub struct Communicator {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    store: Store,
    group: Box<dyn Group>,
    next: Cell<u64>,
    recorder: Rc<Recorder>,
}

/// A collective that was started.
#[must_use = "a collective that nobody waits for may still write"]
pub struct Pending {
    op: CollectiveOp,
    work: Box<dyn Work>,
}

impl Pending {
    /// A collective that is complete.
    pub fn over(collective: Collective<'_>) -> Self {
        Self { op: collective.op(), work: Box::new(Over) }
    }

    /// Waits for the collective: all later computation of this rank sees the result.
    pub fn wait(self) -> Result<()> {
        self.work.wait().with_context(|| format!("{} failed", self.op))
    }
}

/// The work of a collective that is complete.
struct Over;

impl Work for Over {
    fn wait(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Collectives for Communicator {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<Pending> {
        let op = collective.op();
        self.agree(op, collective.input(), purpose)?;
        let work = match collective {
            Collective::AllReduce(tensor) => self.group.all_reduce_sum(tensor),
            Collective::Reduce { tensor, root } => self.group.reduce_sum(tensor, root),
            Collective::ReduceScatter { output, input } => {
                self.group.reduce_scatter_sum(output, input)
            }
            Collective::AllGather { output, input } => self.group.all_gather(output, input),
        };
        Ok(Pending { op, work: work.with_context(|| format!("{op} failed"))? })
    }
}

impl Communicator {
    /// Joins the other ranks of `spec`; tensors are on `device`. A rank that never comes shows as an
    /// error after `timeout`.
    pub fn join(
        rendezvous: Rendezvous,
        spec: &RunSpec,
        rank: usize,
        device: Device,
        timeout: Duration,
        recorder: Rc<Recorder>,
    ) -> Result<Self> {
        let world_size = spec.world_size;
        let store = Store::join(&rendezvous.host, rendezvous.port, rendezvous.listener, timeout)?;
        let group: Box<dyn Group> = match spec.backend {
            Backend::Gloo => Box::new(Gloo::new(
                &store,
                rank,
                world_size,
                &rendezvous.interface,
                timeout,
                device,
            )?),
            Backend::Nccl => Box::new(Nccl::new(&store, rank, world_size, timeout, device)?),
        };
        Ok(Self { rank, world_size, timeout, store, group, next: Cell::new(0), recorder })
    }

    /// Leaves the group: the rank that hosts the store stays until everybody else has left.
    pub fn leave(&self) -> Result<()> {
        self.store.set(&format!("left/{}", self.rank), &[])?;
        if self.rank == 0 {
            let everybody: Vec<String> =
                (0..self.world_size).map(|rank| format!("left/{rank}")).collect();
            self.store.wait_get(&everybody, self.timeout).context("not every rank left")?;
        }
        Ok(())
    }

    fn agree(&self, op: CollectiveOp, tensor: &Tensor, purpose: &str) -> Result<()> {
        let sequence = self.next.replace(self.next.get() + 1);
        let (dtype, numel) = (dtype_name(tensor.kind())?, tensor.numel());
        self.recorder.emit(Event::CollectiveEntered {
            sequence,
            op,
            dtype: dtype.into(),
            numel,
        })?;
        let key = |sequence: u64, rank: usize| format!("collective/{sequence}/{rank}");
        let own = format!("{op} of {numel} {dtype}, {purpose}");
        self.store.set(&key(sequence, self.rank), own.as_bytes())?;
        let keys: Vec<String> = (0..self.world_size).map(|rank| key(sequence, rank)).collect();
        let announced: Vec<String> = self
            .store
            .wait_get(&keys, self.timeout)
            .with_context(|| self.absent(sequence, &keys))?
            .into_iter()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect();
        // All ranks have announced this collective, so none still reads the one before the last.
        if let Some(old) = sequence.checked_sub(2) {
            self.store.delete(&key(old, self.rank))?;
        }
        if announced.iter().any(|other| *other != own) {
            self.recorder.emit(Event::CollectiveMismatch { sequence, announced })?;
            // Rank 0 keeps the store up until every rank has seen the mismatch.
            self.leave()?;
            bail!("the ranks do not agree on collective {sequence}; this rank is at {own}");
        }
        Ok(())
    }

    /// The ranks that did not come to a collective, in words.
    fn absent(&self, sequence: u64, keys: &[String]) -> String {
        let came: Result<Vec<bool>> = keys.iter().map(|key| self.store.has(key)).collect();
        let Ok(came) = came else {
            return format!("in collective {sequence} the TCPStore, which rank 0 hosts, is gone");
        };
        let absent: Vec<String> =
            (0..came.len()).filter(|&rank| !came[rank]).map(|rank| rank.to_string()).collect();
        format!("collective {sequence} was never reached by rank {}", absent.join(", "))
    }
}
