//! Collectives that are issued only after all ranks have agreed on the operation.
//!
//! Gloo aborts the process when sizes or dtypes differ between ranks, and silently adds up the wrong tensors when two
//! operations of equal size are swapped. NCCL hangs, or adds up the wrong tensors, too. So before each collective every
//! rank announces (operation, dtype, elements, purpose) under the collective's sequence number in the TCPStore, and
//! compares the announcements of all ranks.

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

pub use self::alone::SingleRank;
use self::gloo::Gloo;
use self::nccl::Nccl;
use crate::dtype::dtype_name;
use crate::recorder::EventRecorder;
use crate::shim::c10d::Store;

/// A collective operation, with the tensors of this rank.
#[derive(Clone, Copy)]
pub enum Collective<'a> {
    /// Sums a tensor over all ranks, in place.
    AllReduce(&'a Tensor),
    /// Sums a tensor over all ranks, in place on rank `root`. On all other ranks, the content of the tensor becomes
    /// unspecified.
    Reduce {
        /// This rank's summand.
        tensor: &'a Tensor,
        /// The rank that gets the sum.
        root: usize,
    },
    /// Sums a tensor over all ranks; each rank gets an equal part of the sum.
    ReduceScatter {
        /// This rank's part of the sum.
        output: &'a Tensor,
        /// This rank's summand, `world_size` times as long as `output`.
        input: &'a Tensor,
    },
    /// Concatenates the tensors of all ranks.
    AllGather {
        /// The concatenated tensors of all ranks, `world_size` times as long as `input`.
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

    /// The tensor that this rank contributes to the collective.
    pub fn input(&self) -> &Tensor {
        match self {
            Self::AllReduce(tensor) | Self::Reduce { tensor, .. } => tensor,
            Self::ReduceScatter { input, .. } | Self::AllGather { input, .. } => input,
        }
    }
}

/// A group of ranks. Every rank of the group must start the same collectives in the same order.
pub trait Collectives {
    /// Starts a collective. `purpose` names the content of the tensors, and must be the same on all ranks.
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective>;

    /// Starts a collective and waits for its end.
    fn run(&self, collective: Collective<'_>, purpose: &str) -> Result<()> {
        self.start(collective, purpose)?.wait()
    }
}

/// The address of the ranks' rendezvous.
pub struct Rendezvous {
    /// The host name of the TCPStore.
    pub host: String,
    /// The port of the TCPStore.
    pub port: u16,
    /// The listening socket of the store; `None` on ranks that do not host the store.
    pub listener: Option<OwnedFd>,
    /// The network interface over which Gloo reaches the other ranks.
    pub interface: String,
}

/// A backend (Gloo or NCCL) that is connected to all ranks. Every rank must start the same operations in the same
/// order.
trait CollectiveBackend {
    /// Starts to sum `tensor` over all ranks, in place.
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Operation>>;

    /// Starts to sum `tensor` over all ranks, in place on rank `root`. On all other ranks, its content becomes
    /// unspecified.
    fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Operation>>;

    /// Starts to sum `input` over all ranks; `output` is this rank's part of the sum.
    fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>>;

    /// Starts to concatenate the `input` tensors of all ranks in `output`.
    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>>;
}

/// A running operation of a backend, which keeps its tensors alive.
trait Operation {
    /// Returns as soon as all work that this rank starts later on its device sees the result.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// One rank's connection to all ranks: the backend, and the TCPStore for the agreement on collectives.
pub struct Communicator {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    store: Store,
    group: Box<dyn CollectiveBackend>,
    next: Cell<u64>,
    recorder: Rc<EventRecorder>,
}

/// A collective that was started and may still run.
#[must_use = "a collective may still write until it is waited for"]
pub struct PendingCollective {
    op: CollectiveOp,
    work: Box<dyn Operation>,
}

impl PendingCollective {
    /// Wraps a collective that is already complete.
    pub fn over(collective: Collective<'_>) -> Self {
        Self { op: collective.op(), work: Box::new(CompleteWork) }
    }

    /// Waits for the collective. All later computation of this rank sees the result.
    pub fn wait(self) -> Result<()> {
        self.work.wait().with_context(|| format!("{} failed", self.op))
    }
}

/// The operation of a collective that is already complete.
struct CompleteWork;

impl Operation for CompleteWork {
    fn wait(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Collectives for Communicator {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective> {
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
        Ok(PendingCollective { op, work: work.with_context(|| format!("{op} failed"))? })
    }
}

impl Communicator {
    /// Connects to the other ranks of the run. The tensors of the collectives are on `device`. If a rank does not
    /// connect within `timeout`, the result is an error.
    pub fn join(
        rendezvous: Rendezvous,
        spec: &RunSpec,
        rank: usize,
        device: Device,
        timeout: Duration,
        recorder: Rc<EventRecorder>,
    ) -> Result<Self> {
        let world_size = spec.world_size;
        let store = Store::join(&rendezvous.host, rendezvous.port, rendezvous.listener, timeout)?;
        let group: Box<dyn CollectiveBackend> = match spec.backend {
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

    /// Leaves the group. Rank 0, which hosts the store, waits until all other ranks have left.
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
        // All ranks have announced this collective, so no rank still reads the announcements of earlier collectives.
        if let Some(old) = sequence.checked_sub(2) {
            self.store.delete(&key(old, self.rank))?;
        }
        if announced.iter().any(|other| *other != own) {
            self.recorder.emit(Event::CollectiveMismatch { sequence, announced })?;
            // Rank 0 keeps the store alive until every rank has seen the mismatch.
            self.leave()?;
            bail!("the ranks do not agree on collective {sequence}; this rank is at {own}");
        }
        Ok(())
    }

    /// The error message that names the ranks that never reached a collective.
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
