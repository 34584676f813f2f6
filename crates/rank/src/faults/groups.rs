//! Faults of collectives: too few ranks take part, or the result is wrong.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::{Fault, RunSpec};

use super::Injected;
use crate::collective::{Collective, Collectives, PendingCollective, SingleRank};
use crate::engine::flat::narrow;
use crate::engine::groups::EngineGroups;

/// The process groups for the engine. One group is faulty if `fault` is a fault of collectives.
pub fn groups(fault: Injected, spec: &RunSpec, rank: usize, sound: EngineGroups) -> EngineGroups {
    let EngineGroups { gradients, norm, digests, .. } = &sound;
    let (gradients, norm, digests) = (Rc::clone(gradients), Rc::clone(norm), Rc::clone(digests));
    let unsummed = Unsummed { rank };
    match fault {
        Some(Fault::NotAveraged) => EngineGroups { gradients: Rc::new(unsummed), ..sound },
        Some(Fault::CollectiveSkipped) => {
            let skipped = FirstSkipped { gradients, unsummed, is_first: Cell::new(true) };
            EngineGroups { gradients: Rc::new(skipped), ..sound }
        }
        Some(Fault::WaitMissing) => {
            EngineGroups { gradients: Rc::new(ResultLost(gradients)), ..sound }
        }
        Some(Fault::OverflowNotAgreed) => EngineGroups { overflow: Rc::new(SingleRank), ..sound },
        Some(Fault::ClippedByLocalNorm) => EngineGroups { norm: Rc::new(SingleRank), ..sound },
        Some(Fault::NormCountsReplicas) => {
            EngineGroups { norm: Rc::new(Multiplied { norm, replicas: spec.world_size }), ..sound }
        }
        Some(Fault::DigestCorrupted) => {
            EngineGroups { digests: Rc::new(Corrupted(digests)), ..sound }
        }
        _ => sound,
    }
}

/// Collectives that exchange no data, so that each rank continues with its own input.
struct Unsummed {
    rank: usize,
}

impl Collectives for Unsummed {
    fn start(&self, collective: Collective<'_>, _purpose: &str) -> Result<PendingCollective> {
        if let Collective::ReduceScatter { output, input } = collective {
            let own = output.numel();
            let part = narrow(input, self.rank * own..(self.rank + 1) * own)?;
            output.shallow_clone().f_copy_(&part)?;
        }
        Ok(PendingCollective::over(collective))
    }
}

/// Collectives whose first call is left out.
struct FirstSkipped {
    gradients: Rc<dyn Collectives>,
    unsummed: Unsummed,
    is_first: Cell<bool>,
}

impl Collectives for FirstSkipped {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective> {
        let group: &dyn Collectives =
            if self.is_first.take() { &self.unsummed } else { &*self.gradients };
        group.start(collective, purpose)
    }
}

/// Collectives whose result is lost: the output tensor keeps its former content, as if it were read too early.
struct ResultLost(Rc<dyn Collectives>);

impl Collectives for ResultLost {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective> {
        let unseen = |tensor: &Tensor| tensor.copy();
        match collective {
            Collective::AllReduce(tensor) => {
                self.0.start(Collective::AllReduce(&unseen(tensor)), purpose)
            }
            Collective::Reduce { tensor, root } => {
                self.0.start(Collective::Reduce { tensor: &unseen(tensor), root }, purpose)
            }
            Collective::ReduceScatter { output, input } => {
                let output = &unseen(output);
                self.0.start(Collective::ReduceScatter { output, input }, purpose)
            }
            Collective::AllGather { output, input } => {
                let output = &unseen(output);
                self.0.start(Collective::AllGather { output, input }, purpose)
            }
        }
    }
}

/// Sums in which a replicated value counts once per rank, although it should count only once.
struct Multiplied {
    norm: Rc<dyn Collectives>,
    replicas: usize,
}

impl Collectives for Multiplied {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective> {
        self.norm.run(collective, purpose)?;
        let _ = collective.input().shallow_clone().f_mul_scalar_(self.replicas as f64)?;
        Ok(PendingCollective::over(collective))
    }
}

/// All-gathers in which one bit of this rank's input is wrong.
struct Corrupted(Rc<dyn Collectives>);

impl Collectives for Corrupted {
    fn start(&self, collective: Collective<'_>, purpose: &str) -> Result<PendingCollective> {
        let Collective::AllGather { output, input } = collective else {
            return self.0.start(collective, purpose);
        };
        let input = &input.f_bitwise_xor(1)?;
        self.0.start(Collective::AllGather { output, input }, purpose)
    }
}
