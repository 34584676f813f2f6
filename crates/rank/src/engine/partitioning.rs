//! The layout of the engine's flat buffer, and its equal partitions, each owned by a rank.
//!
//! Parameters that are cut together form a unit. In stages 1 and 2 a unit is a parameter group
//! (`DeepSpeedZeroOptimizer.flatten_dense_tensors_aligned` in `runtime/zero/stage_1_and_2.py`), in stage 3 a single
//! parameter (`Init._partition_param` in `runtime/zero/partition_parameters.py`). Stage 3 pads units to the world size
//! (`Init._aligned_size`). Stage 0 neither cuts nor pads units: every rank owns the whole flat buffer.

use std::ops::Range;

use zprobe_model::spec::plan::Segment;
use zprobe_model::spec::{Plan, RunSpec};

/// The alignment factor in stages 1 and 2: units are padded to a multiple of the factor times the world size
/// (`nccl_start_alignment_factor` in DeepSpeed).
pub const ALIGNMENT: usize = 2;

/// Consecutive parameters that are cut together, with padding at the end so that every rank owns an equal part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ParameterUnit {
    /// The indices of the unit's parameters.
    params: Vec<usize>,
    /// The unit's range in the flat buffer, including padding.
    flat: Range<usize>,
    /// The offset of a rank's part of the unit in that rank's partition.
    start: usize,
    /// The number of elements in a rank's part of the unit.
    part: usize,
}

/// Consecutive elements of a parameter with the same owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSlice {
    /// The rank that owns the slice.
    pub rank: usize,
    /// The range of the slice in the parameter, in elements.
    pub param: Range<usize>,
    /// The range of the slice in the owner's partition.
    pub partition: Range<usize>,
}

/// A range of a rank's partition that is contiguous in the flat buffer, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContiguousRange {
    /// The range in the rank's partition.
    pub partition: Range<usize>,
    /// The range in the flat buffer.
    pub flat: Range<usize>,
}

/// The layout of a run's trainable parameters in the flat buffer, and the owner of each part of the buffer.
#[derive(Clone, Debug)]
pub struct Partitioning {
    units: Vec<ParameterUnit>,
    /// The range of each parameter in the flat buffer; `None` for a frozen parameter.
    places: Vec<Option<Range<usize>>>,
    /// The range of each parameter group in a rank's partition.
    groups: Vec<Range<usize>>,
    world_size: usize,
    replicated: bool,
}

impl Partitioning {
    /// Lays out the flat buffer for the run's stage and parameter groups.
    pub fn new(spec: &RunSpec, plan: &Plan) -> Self {
        let replicated = spec.stage == 0;
        let owners = if replicated { 1 } else { spec.world_size };
        let alignment = match spec.stage {
            0 | 3 => owners,
            _ => ALIGNMENT * owners,
        };
        let mut this = Self {
            units: Vec::new(),
            places: vec![None; plan.params().len()],
            groups: Vec::new(),
            world_size: spec.world_size,
            replicated,
        };
        let (mut flat, mut start) = (0, 0);
        for group in parameter_groups(spec, plan) {
            let first = start;
            let each = if spec.stage == 3 { 1 } else { group.len().max(1) };
            for params in group.chunks(each) {
                let mut end = flat;
                for &param in params {
                    let numel = plan.params()[param].numel();
                    this.places[param] = Some(end..end + numel);
                    end += numel;
                }
                let padded = (end - flat).next_multiple_of(alignment);
                let part = padded / owners;
                this.units.push(ParameterUnit {
                    params: params.to_vec(),
                    flat: flat..flat + padded,
                    start,
                    part,
                });
                flat += padded;
                start += part;
            }
            this.groups.push(first..start);
        }
        this
    }

    /// The number of elements in the flat buffer, including padding.
    pub fn numel(&self) -> usize {
        self.units.last().map_or(0, |unit| unit.flat.end)
    }

    /// The number of elements in a rank's partition, including padding. The number is the same for every rank.
    pub fn partition_numel(&self) -> usize {
        self.units.last().map_or(0, |unit| unit.start + unit.part)
    }

    /// True if every rank owns the whole flat buffer (stage 0).
    pub fn is_replicated(&self) -> bool {
        self.replicated
    }

    /// The range of a parameter in the flat buffer; `None` for a frozen parameter.
    pub fn place(&self, param: usize) -> Option<Range<usize>> {
        self.places[param].clone()
    }

    /// The range of a parameter's unit in a rank's partition; `None` for a frozen parameter.
    pub fn part(&self, param: usize) -> Option<Range<usize>> {
        let unit = self.units.iter().find(|unit| unit.params.contains(&param))?;
        Some(unit.start..unit.start + unit.part)
    }

    /// The ranges of the parameter groups in a rank's partition.
    pub fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// The slices of a parameter with their owners; empty for a frozen parameter. In stage 0 every rank owns the whole
    /// parameter.
    pub fn slices(&self, index: usize) -> Vec<ParameterSlice> {
        let Some(place) = self.place(index) else { return Vec::new() };
        (0..self.world_size)
            .flat_map(|rank| {
                let place = place.clone();
                self.runs(rank, 0..self.partition_numel()).filter_map(move |range| {
                    let (start, end) = overlap(&range.flat, &place)?;
                    let offset = range.partition.start + start - range.flat.start;
                    Some(ParameterSlice {
                        rank,
                        param: start - place.start..end - place.start,
                        partition: offset..offset + end - start,
                    })
                })
            })
            .collect()
    }

    /// Maps a range of a rank's partition to contiguous ranges of the flat buffer.
    pub fn runs(
        &self,
        rank: usize,
        part: Range<usize>,
    ) -> impl Iterator<Item = ContiguousRange> + '_ {
        let owner = if self.replicated { 0 } else { rank };
        self.units.iter().filter_map(move |unit| {
            let (start, end) = overlap(&part, &(unit.start..unit.start + unit.part))?;
            let flat = unit.flat.start + owner * unit.part + start - unit.start;
            Some(ContiguousRange { partition: start..end, flat: flat..flat + end - start })
        })
    }

    /// The layout of a rank's partition: the pieces of parameters and of padding in the partition.
    pub fn layout(&self, rank: usize) -> Vec<Segment> {
        self.runs(rank, 0..self.partition_numel())
            .flat_map(|range| self.segments(range.flat))
            .collect()
    }

    /// The pieces of parameters and of padding in a range of the flat buffer.
    fn segments(&self, range: Range<usize>) -> Vec<Segment> {
        let mut segments = Vec::new();
        for unit in &self.units {
            let mut end = unit.flat.start;
            for &param in &unit.params {
                let Some(place) = self.place(param) else { continue };
                end = place.end;
                if let Some((start, end)) = overlap(&place, &range) {
                    let offset = start - place.start;
                    segments.push(Segment::new(Some(param), offset, end - start));
                }
            }
            if let Some((start, stop)) = overlap(&(end..unit.flat.end), &range) {
                segments.push(Segment::new(None, start - end, stop - start));
            }
        }
        segments
    }
}

/// The indices of the trainable parameters by parameter group. There is a single group, or there are two: the second
/// group has the one-dimensional parameters, which usually have no weight decay.
fn parameter_groups(spec: &RunSpec, plan: &Plan) -> Vec<Vec<usize>> {
    let trainable = (0..plan.params().len()).filter(|&param| plan.params()[param].trainable);
    if spec.parameter_groups.unwrap_or(1) < 2 {
        return vec![trainable.collect()];
    }
    let (decayed, others) = trainable.partition(|&param| plan.params()[param].shape.len() > 1);
    vec![decayed, others]
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> Option<(usize, usize)> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use zprobe_model::spec::{Model, Shape, SpecRequest};

    fn partitioning(
        stage: u8,
        world_size: usize,
        groups: usize,
        frozen: bool,
    ) -> (Plan, Partitioning) {
        let request = SpecRequest {
            stage: Some(stage),
            world_size: Some(world_size),
            parameter_groups: Some(groups),
            shapes: if frozen { vec![Shape::Frozen] } else { vec![] },
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let plan = Plan::new(&spec);
        let partitioning = Partitioning::new(&spec, &plan);
        (plan, partitioning)
    }

    proptest! {
        #[test]
        fn every_trainable_element_has_its_owners_and_one_place(
            stage in 0u8..4, world_size in 1usize..9, groups in 1usize..3, frozen: bool,
        ) {
            let (plan, partitioning) = partitioning(stage, world_size, groups, frozen);
            for (index, param) in plan.params().iter().enumerate() {
                let mut owners = vec![0; param.numel()];
                for slice in partitioning.slices(index) {
                    prop_assert_eq!(slice.param.len(), slice.partition.len());
                    prop_assert!(slice.partition.end <= partitioning.partition_numel());
                    owners[slice.param].iter_mut().for_each(|count| *count += 1);
                }
                let expected = match (param.trainable, stage) {
                    (false, _) => 0,
                    (true, 0) => world_size,
                    (true, _) => 1,
                };
                prop_assert!(owners.iter().all(|&count| count == expected));
            }
        }

        #[test]
        fn the_coded_model_is_cut_where_bugs_hide(
            world_size in 1usize..17, ga in 1usize..9, steps in 1usize..4,
        ) {
            let request = SpecRequest {
                world_size: Some(world_size),
                gradient_accumulation_steps: Some(ga),
                steps: Some(steps),
                ..SpecRequest::default()
            };
            let spec = request.resolve().expect("a valid request");
            let (code, plan) = (Plan::code(&spec).length(), Plan::new(&spec));
            let partitioning = Partitioning::new(&spec, &plan);
            prop_assert!(partitioning.partition_numel() >= code, "a partition can be decoded alone");
            prop_assert!(partitioning.numel() > plan.numel(), "there is padding to look at");
            let is_cut = |param| partitioning.slices(param).len() > 1;
            prop_assert!(world_size == 1 || (0..plan.params().len()).any(is_cut));
        }

        #[test]
        fn a_layout_lists_what_the_slices_place(
            stage in 0u8..4, world_size in 1usize..9, groups in 1usize..3, frozen: bool,
        ) {
            let (_, partitioning) = partitioning(stage, world_size, groups, frozen);
            for rank in 0..world_size {
                let mut start = 0;
                for segment in partitioning.layout(rank) {
                    if let Some(param) = segment.param {
                        let place = ParameterSlice {
                            rank,
                            param: segment.offset..segment.offset + segment.len,
                            partition: start..start + segment.len,
                        };
                        prop_assert!(partitioning.slices(param).contains(&place));
                    }
                    start += segment.len;
                }
                prop_assert_eq!(start, partitioning.partition_numel());
            }
        }
    }

    #[test]
    fn stages_one_and_two_pad_to_twice_the_world_size_three_to_the_world_size_and_zero_not_at_all()
    {
        let padding = |stage| {
            let (plan, partitioning) = partitioning(stage, 3, 1, false);
            (partitioning.numel() - plan.numel(), plan)
        };
        let (padded, plan) = padding(1);
        assert_eq!(padded, plan.numel().next_multiple_of(6) - plan.numel());
        assert_eq!(padding(2).0, padded);
        let each = plan.params().iter().map(|param| param.numel().next_multiple_of(3));
        assert_eq!(padding(3).0, each.sum::<usize>() - plan.numel());
        assert_eq!(padding(0).0, 0);
    }

    #[test]
    fn stage_three_cuts_each_parameter_and_the_others_cut_groups() {
        let owners = |stage| {
            let (plan, partitioning) = partitioning(stage, 4, 1, false);
            (0..plan.params().len())
                .map(|param| {
                    let mut ranks: Vec<usize> =
                        partitioning.slices(param).iter().map(|slice| slice.rank).collect();
                    ranks.dedup();
                    ranks.len()
                })
                .collect::<Vec<_>>()
        };
        assert!(owners(3).iter().filter(|&&owners| owners == 4).count() > 2);
        assert!(owners(1).iter().all(|&owners| owners < 4));
    }

    #[test]
    fn two_groups_part_what_is_decayed_from_what_is_not() {
        let request = SpecRequest {
            model: Some(Model::Mlp),
            parameter_groups: Some(2),
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let partitioning = Partitioning::new(&spec, &Plan::new(&spec));
        // The biases come after all weights, because they are in the second group.
        assert_eq!(partitioning.place(0), Some(0..4096));
        assert_eq!(partitioning.place(2), Some(4096..8192));
        assert_eq!(partitioning.place(1), Some(8192..8256));
        assert_eq!(partitioning.groups(), [0..4096, 4096..4160]);
    }
}
