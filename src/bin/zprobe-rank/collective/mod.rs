//! Collectives, issued only after the ranks have agreed on what they are about to issue.
//!
//! Gloo aborts the process when sizes or dtypes differ between ranks, and silently adds up the
//! wrong tensors when two operations of equal size are swapped; NCCL hangs, or does the same. So before each collective every
//! rank announces (operation, dtype, elements, what for) under the collective's sequence number in
//! the TCPStore, and compares the announcements of all ranks.

mod gloo;
mod nccl;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tch::{Device, Tensor};
use zprobe::spec::{Backend, RunSpec};
use zprobe::trace::{CollectiveOp, Event};

use self::gloo::Gloo;
use self::nccl::Nccl;
use crate::recorder::{Recorder, dtype_name};
use crate::shim::c10d::Store;

/// Where the ranks meet.
pub struct Rendezvous {
    /// Host of the TCPStore.
    pub host: String,
    /// Port of the TCPStore.
    pub port: u16,
    /// The listening socket, on the rank that hosts the store.
    pub listener: Option<OwnedFd>,
}

/// A backend, connected to all ranks. Operations are started in the same order on every rank.
trait Group {
    /// Starts to sum `tensor` over all ranks, in place.
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Work>>;

    /// Starts to sum `tensor` over all ranks, in place on rank `root`; elsewhere it becomes anything.
    fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>>;

    /// Starts to sum `input` over all ranks; `output` is this rank's part of the sum.
    fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>>;

    /// Starts to concatenate the ranks' `input` in `output`.
    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>>;
}

/// An operation of a backend that was started. It keeps the tensors that it uses.
trait Work {
    /// Returns when what follows on this rank, on its device, finds the result.
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
    /// Waits for it: what this rank computes from now on finds the result.
    pub fn wait(self) -> Result<()> {
        self.work.wait().with_context(|| format!("{} failed", self.op))
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
            Backend::Gloo => Box::new(Gloo::new(&store, rank, world_size, timeout, device)?),
            Backend::Nccl => Box::new(Nccl::new(&store, rank, world_size, timeout, device)?),
        };
        Ok(Self { rank, world_size, timeout, store, group, next: Cell::new(0), recorder })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Sums `tensor` over all ranks, in place; `purpose` says what it holds.
    pub fn all_reduce_sum(&self, tensor: &Tensor, purpose: &str) -> Result<()> {
        self.start_all_reduce_sum(tensor, purpose)?.wait()
    }

    /// Starts the same.
    pub fn start_all_reduce_sum(&self, tensor: &Tensor, purpose: &str) -> Result<Pending> {
        let op = CollectiveOp::AllReduce;
        self.start(op, tensor, purpose, || self.group.all_reduce_sum(tensor))
    }

    /// Starts to sum `tensor` over all ranks, in place on rank `root`.
    pub fn start_reduce_sum(&self, tensor: &Tensor, root: usize, purpose: &str) -> Result<Pending> {
        let op = CollectiveOp::Reduce;
        self.start(op, tensor, purpose, || self.group.reduce_sum(tensor, root))
    }

    /// Starts to sum `input` over all ranks; this rank's part of it, of `world_size` equal ones,
    /// goes to `output`.
    pub fn start_reduce_scatter_sum(
        &self,
        output: &Tensor,
        input: &Tensor,
        purpose: &str,
    ) -> Result<Pending> {
        let op = CollectiveOp::ReduceScatter;
        self.start(op, input, purpose, || self.group.reduce_scatter_sum(output, input))
    }

    /// Concatenates the ranks' `input` in `output`, which is `world_size` times as long; `purpose`
    /// says what they hold.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor, purpose: &str) -> Result<()> {
        let op = CollectiveOp::AllGather;
        self.start(op, input, purpose, || self.group.all_gather(output, input))?.wait()
    }

    fn start(
        &self,
        op: CollectiveOp,
        input: &Tensor,
        purpose: &str,
        launch: impl FnOnce() -> Result<Box<dyn Work>>,
    ) -> Result<Pending> {
        self.agree(op, input, purpose)?;
        let work = launch().with_context(|| format!("{op} failed"))?;
        Ok(Pending { op, work })
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
        // Everybody has announced this collective, so nobody still reads the one before the last.
        if let Some(old) = sequence.checked_sub(2) {
            self.store.delete(&key(old, self.rank))?;
        }
        if announced.iter().any(|other| *other != own) {
            self.recorder.emit(Event::CollectiveMismatch { sequence, announced })?;
            // Everybody sees the mismatch, if rank 0 keeps the store up for so long.
            self.leave()?;
            bail!("the ranks do not agree on collective {sequence}; this rank is at {own}");
        }
        Ok(())
    }

    /// Who did not come to a collective, when not everybody did.
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
