//! The settings of PyTorch's pipelining schedules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Engine, Invalid, RunSpec, Shape, SpecRequest, named_enum};

named_enum! {
    /// A schedule of `torch.distributed.pipelining`: the order in which the stages of a pipeline run microbatches
    /// forward and backward.
    pub enum Schedule {
        /// `ScheduleGPipe`: all microbatches forward, then all microbatches backward.
        GPipe = "gpipe",
        /// `Schedule1F1B`: one microbatch forward and one backward in turn.
        OneForwardOneBackward = "1f1b",
        /// `ScheduleLoopedBFS`: each rank has two stages, and runs all microbatches through one stage first.
        LoopedBfs = "looped-bfs",
        /// `ScheduleInterleaved1F1B`: each rank has two stages, in a loop over the ranks.
        Interleaved = "interleaved-1f1b",
        /// `ScheduleInterleavedZeroBubble`: as `interleaved-1f1b`, with the gradients of inputs before those of
        /// weights.
        InterleavedZeroBubble = "interleaved-zero-bubble",
        /// `ScheduleZBVZeroBubble`: each rank has two stages, in a V over the ranks.
        ZbvZeroBubble = "zbv-zero-bubble",
        /// `ScheduleDualPipeV`: as `zbv-zero-bubble`, with a forward and a backward at the same time.
        DualPipeV = "dual-pipe-v",
    }
}

impl Schedule {
    /// The number of stages per rank.
    pub fn stages_per_rank(self) -> usize {
        if matches!(self, Self::GPipe | Self::OneForwardOneBackward) { 1 } else { 2 }
    }

    /// The rank that holds a stage, in a pipeline of `ranks` ranks.
    fn rank_of(self, stage: usize, ranks: usize) -> usize {
        let is_v = matches!(self, Self::ZbvZeroBubble | Self::DualPipeV);
        if is_v && stage >= ranks { 2 * ranks - 1 - stage } else { stage % ranks }
    }

    /// True if the schedule needs at least as many microbatches as there are stages.
    fn fills_all_stages(self) -> bool {
        matches!(self, Self::OneForwardOneBackward | Self::DualPipeV)
    }

    /// True if the schedule needs the same number of microbatches in each round.
    fn goes_in_rounds(self) -> bool {
        matches!(self, Self::Interleaved | Self::InterleavedZeroBubble)
    }
}

named_enum! {
    /// The wrapper of each stage that averages gradients over several pipelines.
    pub enum DataParallel {
        /// `DistributedDataParallel`
        Ddp = "ddp",
        /// `fully_shard`
        Fsdp2 = "fsdp2",
    }
}

/// The settings of a run of PyTorch's pipelining schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineOptions {
    /// The schedule of the pipeline.
    pub schedule: Schedule,
    /// The number of pipelines that each hold the whole model; gradients are averaged over the pipelines.
    pub pipelines: usize,
    /// The wrapper of each stage if there are several pipelines.
    pub data_parallel: DataParallel,
    /// True if the schedule divides gradients by the number of microbatches (`scale_grads`), false if the loss is
    /// divided.
    pub scale_grads: bool,
}

impl PipelineOptions {
    /// The settings that a request asks for.
    pub(super) fn new(request: &SpecRequest) -> Self {
        let asked = request.or_default(Engine::Pipeline);
        Self {
            schedule: asked.schedule(),
            pipelines: asked.pipelines(),
            data_parallel: asked.data_parallel(),
            scale_grads: asked.scale_grads(),
        }
    }

    /// The ranks that hold the parameters of each stage, stage by stage, in a run on `world_size` ranks.
    pub(super) fn stages(self, world_size: usize) -> Vec<Vec<usize>> {
        let ranks = world_size / self.pipelines;
        let of_stage = |stage| {
            let first = self.schedule.rank_of(stage, ranks);
            (first..world_size).step_by(ranks).collect()
        };
        (0..ranks * self.schedule.stages_per_rank()).map(of_stage).collect()
    }
}

/// The shapes that the stages of a pipeline support.
pub const PIPELINE_SHAPES: [Shape; 10] = [
    Shape::UnusedFirst,
    Shape::UnusedLast,
    Shape::UnusedAlways,
    Shape::UnusedAlternating,
    Shape::Frozen,
    Shape::Scalars,
    Shape::Twins,
    Shape::ThreeBlocks,
    Shape::Tied,
    Shape::WarmUp,
];

/// The reason why a pipeline run does not support an unusual model or loop (a *shape*); `None` if it does.
pub(super) fn leaves_no_room(spec: &RunSpec, shape: Shape) -> Option<&'static str> {
    let under_ddp = spec.pipeline().is_some_and(|it| {
        it.pipelines > 1
            && it.data_parallel == DataParallel::Ddp
            && it.schedule.stages_per_rank() > 1
    });
    if under_ddp && shape.leaves_unused() {
        return Some(
            "with two stages per rank, DDP marks the parameters twice and fails; use --data-parallel fsdp2, or a \
             schedule with one stage per rank",
        );
    }
    (!PIPELINE_SHAPES.contains(&shape)).then_some(
        "a schedule itself runs all microbatches through its stages, which each have their own parameters; \
         choose another engine with --engine",
    )
}

/// Refuses settings that a schedule does not support.
pub(super) fn check(spec: &RunSpec) -> Vec<Invalid> {
    let Some(PipelineOptions { schedule, pipelines, .. }) = spec.pipeline() else {
        return Vec::new();
    };
    let (world, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    let divides = world.is_multiple_of(pipelines);
    let ranks = (world / pipelines).max(1);
    let stages = ranks * schedule.stages_per_rank();
    let rounds = (ga / ranks).max(1);
    let rows = [
        (
            !divides,
            format!("--pipelines {pipelines} with {world} ranks"),
            "each pipeline has the same number of ranks; use a number that divides --nproc-per-node",
        ),
        (
            divides && !ranks.is_power_of_two(),
            format!("{ranks} ranks in a pipeline"),
            "codes stay exact only if this number is a power of two; use another --nproc-per-node",
        ),
        (
            schedule.fills_all_stages() && ga < stages,
            format!("--schedule {schedule} with --ga {ga} and {stages} stages"),
            "the schedule needs at least as many microbatches as there are stages; use a larger --ga",
        ),
        (
            schedule.goes_in_rounds() && !ga.is_multiple_of(rounds),
            format!("--schedule {schedule} with --ga {ga} and {ranks} ranks"),
            "the schedule needs equal rounds of microbatches; use a --ga that is a multiple of the number of ranks \
             in a pipeline",
        ),
        (
            spec.gradient_clipping > 0.0,
            format!("--gradient-clipping {}", spec.gradient_clipping),
            "each rank has only the norm of its own stages, and the training loop must add up these norms; \
             leave out the flag",
        ),
        (
            spec.model == super::Model::Mlp,
            "--engine pipeline with --model mlp".to_owned(),
            "only the coded model has stages; drop one of the two flags",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_lie_in_a_loop_or_in_a_v_over_the_ranks_of_each_pipeline() {
        let stages = |schedule, pipelines, ranks| {
            let options = PipelineOptions {
                schedule,
                pipelines,
                data_parallel: DataParallel::Ddp,
                scale_grads: true,
            };
            options.stages(ranks)
        };
        assert_eq!(stages(Schedule::GPipe, 1, 3), [[0], [1], [2]]);
        assert_eq!(stages(Schedule::GPipe, 2, 4), [[0, 2], [1, 3]]);
        assert_eq!(stages(Schedule::LoopedBfs, 1, 2), [[0], [1], [0], [1]]);
        assert_eq!(stages(Schedule::ZbvZeroBubble, 1, 2), [[0], [1], [1], [0]]);
    }
}
