"""The training script for PyTorch's DistributedDataParallel."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.engines.ddp.eyes import Eyes
from zprobe_rank.engines.ddp.overlapped import FusedOptimizer, OptimizersInBackward

COMM_HOOKS = {
    "fp16-compress": default_hooks.fp16_compress_hook,
    "bf16-compress": default_hooks.bf16_compress_hook,
    "all-reduce": default_hooks.allreduce_hook,
    "power-sgd": powerSGD_hook.powerSGD_hook,
    "power-sgd-full-rank": powerSGD_hook.powerSGD_hook,
    "post-local-sgd": post_localSGD_hook.post_localSGD_hook,
}

# The rank of the approximation, and the compression rate from which PowerSGD compresses a tensor. `power-sgd` has a rate
# that no tensor reaches. `power-sgd-full-rank` compresses matrices of at most four rows, whose rank is at most four.
POWER_SGD = {"power-sgd": (1, 1 << 40), "power-sgd-full-rank": (4, 0.5)}

MIB = 1024 * 1024


def train(run):
    """Trains with gradient accumulation under `no_sync`, as the documentation of DDP shows."""
    settings = run.spec["ddp"]
    ddp, compiled, optimizer, scheduler, scaler = set_up(run)
    loss_factor = loss_factor_of(run)
    is_late = "late-no-sync" in run.spec["shapes"]
    for _ in run.steps():
        if run.resumes():
            with run.checkpoint() as folder:
                save(folder, ddp, optimizer, scheduler, scaler)
                ddp, compiled, optimizer, scheduler, scaler = set_up(run)
                load(folder, ddp, optimizer, scheduler, scaler)
        for microbatch in run.microbatches():
            for part in microbatch:
                with contextlib.nullcontext() if part.is_last or is_late else ddp.no_sync():
                    # torch's compiler splits the graph at the ends of buckets, and uses the same constant for the first
                    # bucket.
                    with first_bucket_like_the_others(settings["bucket_cap_mb"]):
                        loss = part.loss(compiled) * loss_factor
                    if is_late:
                        # This call comes too late: the forward of the microbatch has already read the flag that
                        # `no_sync` sets.
                        ddp.require_backward_grad_sync = part.is_last
                    scaler.scale(loss / run.accumulation_steps).backward()
                    if settings["delayed_parameters"] == "awaited":
                        # Gloo's barrier ends after all collectives that were started before the barrier.
                        dist.barrier()
        with run.update() as update:
            scaler.unscale_(optimizer)
            update.clip(run.trainable())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


def set_up(run):
    """A new model under DDP, the same model as it runs after compilation, and a new optimizer with its scheduler, which
    overlapped optimizers do not have, and its scaler."""
    arguments = dict(run.spec["ddp"])
    comm_hook, backend = arguments.pop("comm_hook"), arguments.pop("compile")
    delayed_parameters, parts = arguments.pop("delayed_parameters"), arguments.pop("tensor_parallel")
    overlapped = arguments.pop("overlapped_optimizer")
    bucket_cap_mb = arguments["bucket_cap_mb"]
    model = run.build()
    if delayed_parameters != "none":
        arguments.update(delayed(model), bucket_cap_mb=int(bucket_cap_mb))
    if parts > 1:
        arguments.update(process_group=group_of_parts(parts))
    if overlapped == "in-backward":
        optimizer = OptimizersInBackward(run)
    with first_bucket_like_the_others(bucket_cap_mb):
        ddp = DistributedDataParallel(model, **arguments)
    if comm_hook != "none":
        ddp.register_comm_hook(hook_state(comm_hook, run.spec, arguments.get("process_group")), COMM_HOOKS[comm_hook])
        if comm_hook == "power-sgd-full-rank":
            why = "the hook is meant to be lossy; with the full rank it may only round, within a bound"
            run.channel.emit("not-observed", what="exact sums of PowerSGD, and its error feedback", why=why)
    # torch compiles kernels and graphs in the first forward.
    compiled = ddp if backend == "none" else torch.compile(ddp, backend=backend.replace("-", "_"))
    if overlapped == "fused":
        optimizer = FusedOptimizer(run, ddp)
    elif overlapped == "none":
        optimizer = run.optimizer(run.trainable())
    scheduler = run.scheduler(optimizer) if overlapped == "none" else None
    scaler = run.scaler()
    run.watch(Eyes, [ddp], optimizer, loss_factor_of(run), scaler=scaler)
    return ddp, compiled, optimizer, scheduler, scaler


def loss_factor_of(run):
    """The factor of the loss. Ranks that hold different parts of a parameter do not average the parameter's gradients."""
    return 1 / run.spec["ddp"]["tensor_parallel"]


def save(folder, ddp, optimizer, scheduler, scaler):
    """Saves a checkpoint on the first rank; all ranks hold the same state."""
    if dist.get_rank() == 0:
        state = dict(
            model=ddp.module.state_dict(),
            optimizer=optimizer.state_dict(),
            scheduler=scheduler.state_dict(),
            scaler=scaler.state_dict(),
        )
        torch.save(state, os.path.join(folder, "checkpoint.pt"))
    dist.barrier()


def load(folder, ddp, optimizer, scheduler, scaler):
    """Loads the checkpoint of the first rank."""
    state = torch.load(os.path.join(folder, "checkpoint.pt"), map_location="cpu")
    ddp.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    scaler.load_state_dict(state["scaler"])


def group_of_parts(parts):
    """The process group of the ranks that hold the same parts of the parameters as this rank. Each of `parts`
    consecutive ranks holds other parts."""
    ranks = range(dist.get_world_size())
    groups = [dist.new_group(ranks[part::parts]) for part in range(parts)]
    return groups[dist.get_rank() % parts]


def delayed(model):
    """The arguments of DDP that delay the reduction of the last half of the parameters until the gradient of the first
    parameter is ready."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return dict(
        delay_all_reduce_named_params=named[-(len(named) // 2) :],
        param_to_hook_all_reduce=named[0][1],
    )


def hook_state(comm_hook, spec, group):
    """The state with which a communication hook averages gradients over the ranks of a process group in every step;
    `None` stands for all ranks."""
    if comm_hook in POWER_SGD:
        rank, rate = POWER_SGD[comm_hook]
        # 2 is the earliest step that PowerSGD accepts with error feedback, which is on by default.
        return powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=rate
        )
    if comm_hook == "post-local-sgd":
        alone = [dist.new_group([rank]) for rank in range(spec["world_size"])][dist.get_rank()]
        return post_localSGD_hook.PostLocalSGDState(
            group, alone, start_localSGD_iter=spec["steps"]
        )
    return group


@contextlib.contextmanager
def first_bucket_like_the_others(bucket_cap_mb):
    """Gives DDP's first bucket the capacity of the other buckets while DDP, or a compiled graph for DDP, is made.

    If a capacity is given, current releases of torch use it for the first bucket, too. Up to torch 2.0 at least, the
    first bucket always has a capacity of 1 MiB, which a small model never fills. torch's own source says that users can
    set this constant (`_ddp_init_helper` in `nn/parallel/distributed.py`).
    """
    default = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = min(default, int(bucket_cap_mb * MIB))
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = default
