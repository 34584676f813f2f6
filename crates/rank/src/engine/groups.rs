//! The process groups of the engine: one for each purpose of a collective.

use std::rc::Rc;

use super::partitioning::Partitioning;
use crate::collective::{Collectives, SingleRank};

/// The process groups of the engine. Most of them consist of all ranks.
pub struct EngineGroups {
    /// The group that reduces gradients.
    pub gradients: Rc<dyn Collectives>,
    /// The group that agrees whether a gradient overflowed.
    pub overflow: Rc<dyn Collectives>,
    /// The group that adds up the global norm. The partitions of its ranks make up the whole gradient.
    pub norm: Rc<dyn Collectives>,
    /// The group that gathers parameters.
    pub parameters: Rc<dyn Collectives>,
    /// The group that exchanges the digests of recorded buffers.
    pub digests: Rc<dyn Collectives>,
}

impl EngineGroups {
    /// The groups of a run; `all` is the group of all ranks.
    pub fn new(all: Rc<dyn Collectives>, partitioning: &Partitioning) -> Self {
        Self {
            gradients: Rc::clone(&all),
            overflow: Rc::clone(&all),
            norm: if partitioning.is_replicated() { Rc::new(SingleRank) } else { Rc::clone(&all) },
            parameters: Rc::clone(&all),
            digests: all,
        }
    }
}
