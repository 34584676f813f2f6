//! The model of a run, and the layouts of buffers, as the ranks described them.

use std::collections::BTreeMap;

use zprobe_model::spec::plan::Segment;
use zprobe_model::trace::{Event, LayoutName, ParamInfo};

/// The parameters of the model and the layouts of the ranks' buffers.
#[derive(Debug, Default)]
pub struct ModelLayout<'a> {
    /// The model's parameters, in flat order; empty if no rank described the model.
    pub params: &'a [ParamInfo],
    /// The parameters as each rank described them last. Indices in the rank's layouts refer to its own list.
    by_rank: BTreeMap<usize, &'a [ParamInfo]>,
    /// The layouts of buffers, by (rank, name).
    pub layouts: BTreeMap<(usize, LayoutName), &'a [Segment]>,
    /// The sampled segments of buffers that were not recorded in full, by (rank, name).
    pub samples: BTreeMap<(usize, LayoutName), &'a [Segment]>,
}

impl<'a> ModelLayout<'a> {
    /// Stores an event of a rank, if the event describes the model or a layout.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::Model { params } => {
                self.params = params;
                self.by_rank.insert(rank, params);
            }
            Event::Layout { layout, segments, sampled } => {
                let layouts = if *sampled { &mut self.samples } else { &mut self.layouts };
                layouts.insert((rank, *layout), segments);
            }
            _ => {}
        }
    }

    /// Returns the first rank that described other parameters than the lowest rank did; `None` if all ranks agree. Ranks
    /// of a script that have described their models to each other agree on the parameters of all of them.
    pub fn other_rank(&self) -> Option<usize> {
        let described = |it: &'a ParamInfo| (&it.name, &it.shape);
        let mut ranks = self.by_rank.iter();
        let (_, first) = ranks.next()?;
        let is_other = |(_, params): &(&usize, &&'a [ParamInfo])| {
            !params.iter().map(described).eq(first.iter().map(described))
        };
        ranks.find(is_other).map(|(rank, _)| *rank)
    }

    /// Returns the segments that a rank recorded of its buffers with a layout; `None` if the rank never described
    /// them.
    pub fn recorded(&self, rank: usize, layout: LayoutName) -> Option<&'a [Segment]> {
        let place = (rank, layout);
        self.samples.get(&place).or_else(|| self.layouts.get(&place)).copied()
    }

    /// True if a rank has a parameter.
    pub fn has(&self, rank: usize, param: usize) -> bool {
        self.params.get(param).is_none_or(|it| it.ranks.is_empty() || it.ranks.contains(&rank))
    }

    /// Returns the first rank that has the same parameters as this rank; `None` if all ranks have the same
    /// parameters.
    pub fn first_with_same_params(&self, rank: usize) -> Option<usize> {
        let own = self.params.iter().find(|param| param.ranks.contains(&rank))?;
        own.ranks.first().copied()
    }

    /// Returns the index of a parameter in the flat order, by its name.
    pub fn param_number(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }

    /// Returns the name of a parameter, by its index in the flat order.
    pub fn param_name(&self, index: usize) -> String {
        self.params
            .get(index)
            .map_or_else(|| format!("parameter {index}"), |param| param.name.clone())
    }
}
