"""The training script for PyTorch's pipelining schedules: one pipeline, or several pipelines under DDP or FSDP2."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.model import Node

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv-zero-bubble": "ScheduleZBVZeroBubble",
    "dual-pipe-v": "ScheduleDualPipeV",
}


#: The rows of each microbatch. The schedule cuts the target by rows, too.
ROWS = 2


class Stage(nn.Module):
    """A stage of the coded model: its blocks add the inner products of their parameters to the value from the preceding
    stage. If `uses_again`, the last block shares the parameters of the first one."""

    def __init__(self, node, uses_again):
        super().__init__()
        self.node = node
        self.again = shares_parameters(next(node.children())) if uses_again else None
        #: For each microbatch the data of the stage's parameters, followed by the data of the second use, if any.
        self.data = []

    def forward(self, sent, microbatch):
        """`sent` is the value from the preceding stage: `ROWS` rows with a column for each microbatch, in fp32. The
        inner products with the data of every microbatch go into the microbatch's column, equally into all rows. So the
        gradient that the stage receives selects the data: the gradient of another microbatch gives the parameters the
        data of that microbatch. `microbatch` is the number of the microbatch, in each row."""
        own, columns = self.data[microbatch[0].item()], []
        if all(x is None for x in own):
            return sent
        for other in self.data:
            # Parameters that this microbatch does not use stay outside of its graph.
            columns.append(self.products([x if y is not None else None for x, y in zip(other, own)]))
        return sent + torch.stack(columns) / ROWS

    def products(self, data):
        """The sum of the inner products of the parameters and these data, in fp32."""
        blocks, at, total = list(self.node.children()), 0, torch.zeros(())
        if self.again is not None:
            blocks.append(self.again)
        for block in blocks:
            count = len(list(block.parameters()))
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                total = total + block(*part).sum()
        return total


def shares_parameters(block):
    """A second block with the parameters of `block`."""
    second = Node()
    for name, param in block.named_parameters(recurse=False):
        second.register_parameter(name, param)
    second.complete()
    return second


def train(run):
    """Trains in pipelines: consecutive ranks hold the stages of one pipeline."""
    spec, settings, model = run.spec, run.spec["pipeline"], run.build()
    ranks = spec["world_size"] // settings["pipelines"]
    mesh = init_device_mesh("cpu", (settings["pipelines"], ranks), mesh_dim_names=("dp", "pp"))
    kind = getattr(schedules, SCHEDULES[settings["schedule"]])
    is_single = issubclass(kind, schedules.PipelineScheduleSingle)
    nodes = {int(name): node for name, node in model.stages.named_children()}
    count = ranks * len(nodes)
    uses_again = run.workload.second_use is not None
    modules = {number: Stage(node, uses_again) for number, node in nodes.items()}
    stages = [
        PipelineStage(averaged(module, run, mesh["dp"]), number, count, torch.device("cpu"), group=mesh.get_group("pp"))
        for number, module in modules.items()
    ]

    def loss(output, target):
        # The target of each row is the column of its microbatch. The ranks of one pipeline do not average their
        # gradients, so the loss is divided by the number of these ranks.
        loss = output.gather(1, target).sum() * model.scale / ranks
        return loss if settings["scale_grads"] else loss / run.accumulation_steps

    options = dict(loss_fn=loss, scale_grads=settings["scale_grads"])
    schedule = kind(stages[0] if is_single else stages, run.accumulation_steps, **options)
    optimizer = run.optimizer(run.trainable())
    scheduler = run.scheduler(optimizer)
    facts = dict(stages=", ".join(str(number) for number in modules))
    run.watch(BaseEyes, [model], optimizer, wrapper=type(schedule).__name__, **facts)

    numbers = torch.arange(run.accumulation_steps).repeat_interleave(ROWS)
    start = [torch.zeros(len(numbers), run.accumulation_steps)] if 0 in nodes else []
    target = numbers[:, None] if count - 1 in nodes else None
    for _ in run.steps():
        hand_out(run.batch(), modules.values())
        schedule.step(*start, target=target, microbatch=numbers)
        with run.update():
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


def hand_out(data, modules):
    """Gives each stage its data of all microbatches. `data` has, for each microbatch, the data of all parameters that
    the rank holds."""
    at, again = 0, sum(len(list(module.node.parameters())) for module in modules)
    for number, module in enumerate(modules):
        count = len(list(module.node.parameters()))
        module.data = [[*of_all[at : at + count], *of_all[again + number : again + number + 1]] for of_all in data]
        at += count


def averaged(module, run, over_pipelines):
    """The stage `module`, wrapped by DDP or FSDP2 to average gradients over the pipelines if there are several."""
    settings = run.spec["pipeline"]
    if settings["pipelines"] == 1:
        return module
    if settings["data_parallel"] == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(module, mesh=over_pipelines)
        return module
    group = over_pipelines.get_group()
    return DistributedDataParallel(module, process_group=group, find_unused_parameters=run.leaves_unused())
