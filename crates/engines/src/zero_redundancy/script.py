"""The training script for PyTorch's ZeroRedundancyOptimizer over DistributedDataParallel."""

import contextlib

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.engines.ddp.eyes import Eyes


def train(run):
    """Trains with an optimizer that updates some parameters on each rank, and sends them to the other ranks."""
    ddp = DistributedDataParallel(run.build(), find_unused_parameters=run.leaves_unused())
    groups = run.groups(run.trainable())
    optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=run.optimizer_class, **run.optimizer_settings)
    run.watch(Eyes, [ddp], optimizer.optim, wrapper=type(optimizer).__name__)
    for _ in run.steps():
        for microbatch in run.microbatches():
            for part in microbatch:
                with contextlib.nullcontext() if part.is_last else ddp.no_sync():
                    (part.loss(ddp) / run.accumulation_steps).backward()
        with run.update() as update:
            update.clip(run.trainable())
            optimizer.step()
            optimizer.zero_grad()
