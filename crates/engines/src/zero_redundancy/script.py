"""The training script for PyTorch's ZeroRedundancyOptimizer over DistributedDataParallel."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.engines.ddp.eyes import Eyes


def train(run):
    """Trains with an optimizer that updates some parameters on each rank, and sends them to the other ranks."""
    ddp, optimizer, scheduler = set_up(run)
    for _ in run.steps():
        if run.resumes():
            with run.checkpoint() as folder:
                save(folder, ddp, optimizer, scheduler)
                ddp, optimizer, scheduler = set_up(run)
                load(folder, ddp, optimizer, scheduler)
        for microbatch in run.microbatches():
            for part in microbatch:
                with contextlib.nullcontext() if part.is_last else ddp.no_sync():
                    (part.loss(ddp) / run.accumulation_steps).backward()
        with run.update() as update:
            update.clip(run.trainable())
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


def set_up(run):
    """A new model under DDP, and a new optimizer with its scheduler."""
    ddp = DistributedDataParallel(run.build(), find_unused_parameters=run.leaves_unused())
    groups = run.groups(run.trainable())
    optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=run.optimizer_class, **run.optimizer_settings)
    run.watch(Eyes, [ddp], optimizer.optim, wrapper=type(optimizer).__name__)
    return ddp, optimizer, run.scheduler(optimizer)


def save(folder, ddp, optimizer, scheduler):
    """Saves a checkpoint on the first rank, which collects the optimizer's state from all ranks."""
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        state = dict(
            model=ddp.module.state_dict(),
            optimizer=optimizer.state_dict(),
            scheduler=scheduler.state_dict(),
        )
        torch.save(state, os.path.join(folder, "checkpoint.pt"))
    dist.barrier()


def load(folder, ddp, optimizer, scheduler):
    """Loads the checkpoint of the first rank. Each rank keeps the optimizer's state of its own parameters."""
    state = torch.load(os.path.join(folder, "checkpoint.pt"), map_location="cpu")
    ddp.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
