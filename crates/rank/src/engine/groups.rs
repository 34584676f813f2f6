//! The process groups of the engine, by the purpose of their collectives.

use std::rc::Rc;

use super::partitioning::Partitioning;
use crate::collective::{Alone, Collectives};

/// Process groups of the engine, most of which consist of all ranks.
pub struct Groups {
    /// The ranks that gradients are reduced over.
    pub gradients: Rc<dyn Collectives>,
    /// The ranks that agree whether a gradient overflowed.
    pub overflow: Rc<dyn Collectives>,
    /// The ranks whose partitions make up the whole gradient, for the global norm.
    pub norm: Rc<dyn Collectives>,
    /// The ranks that parameters are gathered from.
    pub parameters: Rc<dyn Collectives>,
    /// The ranks that exchange digests of what they recorded.
    pub digests: Rc<dyn Collectives>,
}

impl Groups {
    /// The groups of a run whose ranks are `all`.
    pub fn new(all: Rc<dyn Collectives>, partitioning: &Partitioning) -> Self {
        Self {
            gradients: Rc::clone(&all),
            overflow: Rc::clone(&all),
            norm: if partitioning.is_replicated() { Rc::new(Alone) } else { Rc::clone(&all) },
            parameters: Rc::clone(&all),
            digests: all,
        }
    }
}
