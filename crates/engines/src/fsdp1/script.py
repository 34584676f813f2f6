"""The training script for PyTorch's `FullyShardedDataParallel` (FSDP1)."""

import contextlib
import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from zprobe_rank.channel import DTYPES
from zprobe_rank.engines.fsdp1.eyes import Eyes
from zprobe_rank.tensors import whole

STRATEGIES = {
    "full-shard": ShardingStrategy.FULL_SHARD,
    "shard-grad-op": ShardingStrategy.SHARD_GRAD_OP,
    "no-shard": ShardingStrategy.NO_SHARD,
    "hybrid-shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid-shard-zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
}


def train(run):
    """Trains fp32 parameters in flat parameters, with computation in the run's dtype."""
    every_microbatch = run.spec["fsdp1"]["reduce_every_microbatch"]
    root, optimizer, scheduler = set_up(run)
    for _ in run.steps():
        if run.resumes():
            with run.checkpoint() as folder:
                save(folder, root, optimizer, scheduler)
                root, optimizer, scheduler = set_up(run)
                load(folder, root, optimizer, scheduler)
        for microbatch in run.microbatches():
            for part in microbatch:
                with contextlib.nullcontext() if part.is_last or every_microbatch else root.no_sync():
                    (part.loss(root) / run.accumulation_steps).backward()
        with run.update() as update:
            if update.limit > 0:
                update.norm = whole(root.clip_grad_norm_(update.limit, update.norm_type))
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


def set_up(run):
    """A new sharded model, and a new optimizer with its scheduler."""
    spec, settings = run.spec, run.spec["fsdp1"]
    model = run.build(torch.float32)
    # With `use_orig_params`, the parameters outlive the wrapping and lose their shapes.
    groups = run.groups(run.trainable())
    options = dict(
        sharding_strategy=STRATEGIES[settings["sharding_strategy"]],
        mixed_precision=MixedPrecision(
            param_dtype=DTYPES[spec["dtype"]],
            reduce_dtype=DTYPES[spec["comm_dtype"]],
            keep_low_precision_grads=settings["keep_low_precision_grads"],
        ),
        use_orig_params=settings["use_orig_params"],
        # By default, FSDP1 takes an accelerator.
        device_id=run.device,
    )
    if settings["sharding_strategy"].startswith("hybrid"):
        sides = settings["replicas"], spec["world_size"] // settings["replicas"]
        options["device_mesh"] = init_device_mesh(run.device.type, sides, mesh_dim_names=("replicate", "shard"))
    root = FullyShardedDataParallel(with_wrapped_blocks(model, options), **options)
    if settings["assign_state_dict"]:
        root.load_state_dict(root.state_dict())
    optimizer = run.optimizer_class(
        groups if settings["use_orig_params"] else root.parameters(), **run.optimizer_settings
    )
    units, accumulates = FullyShardedDataParallel.fsdp_modules(root), not settings["reduce_every_microbatch"]
    run.watch(functools.partial(Eyes, places=run.places), units, optimizer, accumulates=accumulates)
    return root, optimizer, run.scheduler(optimizer)


def save(folder, root, optimizer, scheduler):
    """Saves a checkpoint with whole parameters and the optimizer's state of whole parameters, on the first rank."""
    # On CPU ranks with `use_orig_params`, the default `offload_to_cpu=True` leaves all kinds of an optimizer's state in
    # one buffer, so that the checkpoint has the last kind in place of all others (torch 2.15.0 and older).
    optimizer_config = FullOptimStateDictConfig(offload_to_cpu=False)
    full = StateDictType.FULL_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(root, full, FullStateDictConfig(), optimizer_config):
        state = dict(model=root.state_dict(), optimizer=FullyShardedDataParallel.optim_state_dict(root, optimizer))
    state.update(scheduler=scheduler.state_dict())
    if dist.get_rank() == 0:
        torch.save(state, os.path.join(folder, "checkpoint.pt"))
    dist.barrier()


def load(folder, root, optimizer, scheduler):
    """Loads the checkpoint into each rank's shards."""
    state = torch.load(os.path.join(folder, "checkpoint.pt"), map_location="cpu")
    root.load_state_dict(state["model"])
    optimizer.load_state_dict(
        FullyShardedDataParallel.optim_state_dict_to_load(root, optimizer, state["optimizer"])
    )
    scheduler.load_state_dict(state["scheduler"])


def with_wrapped_blocks(model, options):
    """The model, whose blocks are separate FSDP units. Blocks that share a parameter belong to the root's unit, as
    FSDP1 requires."""
    holder = getattr(model, "layers", model)
    uses = [id(parameter) for block in holder.children() for parameter in block.parameters()]
    for name, block in list(holder.named_children()):
        parameters = list(block.parameters())
        if parameters and all(uses.count(id(parameter)) == 1 for parameter in parameters):
            setattr(holder, name, FullyShardedDataParallel(block, **options))
    return model
