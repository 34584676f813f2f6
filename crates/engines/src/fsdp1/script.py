"""The training script for PyTorch's `FullyShardedDataParallel` (FSDP1)."""

import contextlib
import functools

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

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
    every_microbatch = settings["reduce_every_microbatch"]
    units = FullyShardedDataParallel.fsdp_modules(root)
    run.watch(functools.partial(Eyes, places=run.places), units, optimizer, accumulates=not every_microbatch)

    for _ in run.steps():
        for microbatch in run.microbatches():
            for part in microbatch:
                with contextlib.nullcontext() if part.is_last or every_microbatch else root.no_sync():
                    (part.loss(root) / run.accumulation_steps).backward()
        with run.update() as update:
            if update.limit > 0:
                update.norm = whole(root.clip_grad_norm_(update.limit))
            optimizer.step()
            optimizer.zero_grad()


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
