"""PyTorch's pipelining schedules, alone or with DDP or FSDP2 over several pipelines."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.engines.base import LoopEngine, gradients_of, whole
from zprobe_rank.sampler import Pieces
from zprobe_rank.tensors import flat

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv-zero-bubble": "ScheduleZBVZeroBubble",
    "dual-pipe-v": "ScheduleDualPipeV",
}


class Stage(nn.Module):
    """A stage of the coded model: its blocks add the inner products of their parameters, one after the other, to what
    the stage before it sends."""

    def __init__(self, node):
        super().__init__()
        self.node = node
        #: Data of the stage's parameters by microbatch, and behind them those of its second use of one.
        self.data = []

    def forward(self, sent, microbatch):
        """`sent` has one element, fp32; `microbatch` is the number of the microbatch, as a tensor."""
        data, at = self.data[microbatch.item()], 0
        blocks = list(self.node.children())
        if len(data) > len(list(self.node.parameters())):
            # The first block has the parameter that is used again at the end.
            blocks.append(blocks[0])
        for block in blocks:
            count = len(list(block.parameters()))
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                sent = sent + block(*part).sum()
        return sent


class Engine(LoopEngine):
    """Ranks that follow one another have the stages of one pipeline."""

    schedules_microbatches = True

    def set_up(self):
        spec = self.spec
        self.settings = spec["pipeline"]
        self.microbatches = spec["gradient_accumulation_steps"]
        self.ranks = spec["world_size"] // self.settings["pipelines"]
        mesh = init_device_mesh("cpu", (self.settings["pipelines"], self.ranks), mesh_dim_names=("dp", "pp"))
        self.over_pipelines = mesh["dp"]
        group = mesh.get_group("pp")
        kind = getattr(schedules, SCHEDULES[self.settings["schedule"]])
        is_single = issubclass(kind, schedules.PipelineScheduleSingle)
        nodes = {int(name): node for name, node in self.model.stages.named_children()}
        count = self.ranks * len(nodes)
        self.modules = {number: Stage(node) for number, node in nodes.items()}
        stages = [
            PipelineStage(self._wrapped(module), number, count, torch.device("cpu"), group=group)
            for number, module in self.modules.items()
        ]
        self.is_first, self.is_last = 0 in nodes, count - 1 in nodes
        self.schedule = kind(
            stages[0] if is_single else stages,
            self.microbatches,
            loss_fn=self._loss,
            scale_grads=self.settings["scale_grads"],
        )
        self.optimizer = self.make_optimizer(self.trainable())
        self.owned = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self._is_sharded():
            self.before_step_layout = "partition"

    def describe(self):
        facts = dict(stages=", ".join(str(number) for number in self.modules))
        return type(self.schedule).__name__, facts

    def run_microbatches(self, data):
        """Runs all microbatches of a step; `data` are those of the held parameters, by microbatch."""
        at, again = 0, sum(len(list(module.node.parameters())) for module in self.modules.values())
        for number, module in enumerate(self.modules.values()):
            count = len(list(module.node.parameters()))
            module.data = [
                [*of_all[at : at + count], *of_all[again + number : again + number + 1]] for of_all in data
            ]
            at += count
        start = [torch.zeros(self.microbatches, 1)] if self.is_first else []
        # The coded loss needs none, but a schedule asks for it.
        target = torch.zeros(self.microbatches, 1) if self.is_last else None
        self.schedule.step(*start, target=target, microbatch=torch.arange(self.microbatches))

    def parameters(self):
        """Every parameter of this rank's stages whole, gathered where they are sharded."""
        return [whole(parameter.detach()) for parameter in self.model.parameters()]

    def hint(self, fragment):
        """DDP leaves parameters whole; `fully_shard` cuts dimension 0 as `torch.chunk` does."""
        if not self._is_sharded():
            return super().hint(fragment)
        for index, parameter in enumerate(self.model.parameters()):
            if parameter is fragment:
                rows, pipelines = fragment.shape[0], self.settings["pipelines"]
                first = min(-(-rows // pipelines) * (dist.get_rank() // self.ranks), rows)
                return index, first * (fragment.numel() // rows), []
        return None

    def before_step(self):
        """The parameters' own gradients in the run's dtype: of all of this rank's stages, or of its shards."""
        if not self._is_sharded():
            return gradients_of(self.model.parameters())
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.owned]
        return Pieces([flat(gradient) for gradient in gradients if flat(gradient).numel() > 0])

    def _is_sharded(self):
        return self.settings["pipelines"] > 1 and self.settings["data_parallel"] == "fsdp2"

    def _wrapped(self, module):
        """A stage, averaged over the pipelines if there are several."""
        if self.settings["pipelines"] == 1:
            return module
        if self._is_sharded():
            from torch.distributed.fsdp import fully_shard

            fully_shard(module, mesh=self.over_pipelines)
            return module
        leaves_unused = any(shape.startswith("unused") for shape in self.spec["shapes"])
        return DistributedDataParallel(
            module, process_group=self.over_pipelines.get_group(), find_unused_parameters=leaves_unused
        )

    def _loss(self, output, _target):
        # Ranks of one pipeline do not average, which the loss makes up for.
        loss = output.sum() * self.model.scale / self.ranks
        return loss if self.settings["scale_grads"] else loss / self.microbatches
