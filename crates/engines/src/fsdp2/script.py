"""The training script for PyTorch's `fully_shard` (FSDP2)."""

import torch
import torch.distributed as dist

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
except ImportError:
    try:
        # Older releases of torch have `fully_shard` in this module.
        from torch.distributed._composable.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise ImportError("torch %s has no FSDP2: %s" % (torch.__version__, error)) from None
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import DTensor, Shard
except ImportError:
    # Older releases of torch have `DTensor` in this module.
    from torch.distributed._tensor import DTensor, Shard

from zprobe_rank.channel import DTYPES
from zprobe_rank.engines.fsdp2.eyes import Eyes


def train(run):
    """Trains fp32 parameters that are sharded, with computation in the run's dtype."""
    settings = run.spec["fsdp2"]
    mesh, every_microbatch = mesh_of(run), settings["reduce_every_microbatch"]
    model, optimizer, scheduler, scaler, loss_factor = set_up(run, mesh)
    for _ in run.steps():
        if run.resumes():
            with run.checkpoint() as folder:
                save(folder, model, optimizer, scheduler, scaler)
                model, optimizer, scheduler, scaler, loss_factor = set_up(run, mesh)
                load(folder, model, optimizer, scheduler, scaler)
        for microbatch in run.microbatches():
            for part in microbatch:
                model.set_requires_gradient_sync(part.is_last or every_microbatch)
                if settings["all_reduce_at_boundary"]:
                    model.set_requires_all_reduce(part.is_last)
                if not settings["reshard_after_backward"]:
                    model.set_reshard_after_backward(part.is_last)
                loss = part.loss(model) * loss_factor
                scaler.scale(loss / run.accumulation_steps).backward()
        with run.update() as update:
            scaler.unscale_(optimizer)
            update.clip(run.trainable())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scheduler.step()


def set_up(run, mesh):
    """A new sharded model, a new optimizer with its scheduler and its scaler, and the factor by which the loss is
    multiplied."""
    spec, settings = run.spec, run.spec["fsdp2"]
    model = run.build(torch.float32)
    if settings["tensor_parallel"] > 1:
        cut(model, mesh["tp"])
    options = dict(
        mesh=mesh[sharded_dimensions(settings)] if mesh.ndim > 1 else mesh,
        mp_policy=MixedPrecisionPolicy(param_dtype=DTYPES[spec["dtype"]], reduce_dtype=DTYPES[spec["comm_dtype"]]),
        # An integer is the number of ranks among which parameters stay sharded.
        reshard_after_forward=settings.get("shards_after_forward") or settings["reshard_after_forward"],
    )
    if spec["offload"] == "cpu":
        options.update(offload_policy=CPUOffloadPolicy(pin_memory=run.device.type != "cpu"))
    if settings["shard_dimension"] == 1:
        options.update(shard_placement_fn=by_columns(mesh["shard"].size() if mesh.ndim > 1 else mesh.size()))
    # Each block gets a separate parameter group, and all other parameters share one group.
    blocks = [block for block in getattr(model, "layers", model).children() if any(True for _ in block.parameters())]
    modules = [*blocks, model]
    for module in modules:
        fully_shard(module, **options)
    loss_factor = choose_divisor(run, modules)
    if settings["all_reduce_hook"]:
        average_in_hooks(modules, mesh.get_group("replicate"))
    if settings["assign_state_dict"]:
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
    # The optimizer holds the sharded parameters, also while the module holds the unsharded ones.
    optimizer = run.optimizer(run.trainable())
    scheduler, scaler = run.scheduler(optimizer), run.scaler()
    facts = dict(implementation="%s.%s" % (fully_shard.__module__, fully_shard.__name__), root=type(model).__name__)
    states, accumulates = [module._get_fsdp_state() for module in modules], not settings["reduce_every_microbatch"]
    run.watch(Eyes, states, optimizer, loss_factor, accumulates=accumulates, scaler=scaler, **facts)
    return model, optimizer, scheduler, scaler, loss_factor


def save(folder, model, optimizer, scheduler, scaler):
    """Saves a sharded checkpoint."""
    checkpoint.save(state_of(model, optimizer, scheduler, scaler), checkpoint_id=folder)


def load(folder, model, optimizer, scheduler, scaler):
    """Loads a sharded checkpoint into the state dicts of the new model and optimizer, and sets these."""
    state = state_of(model, optimizer, scheduler, scaler)
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    scaler.load_state_dict(state["scaler"])


def state_of(model, optimizer, scheduler, scaler):
    """The state dicts of this rank, by their names in the checkpoint."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return dict(
        model=model_state,
        optimizer=optimizer_state,
        scheduler=scheduler.state_dict(),
        scaler=scaler.state_dict(),
    )


def mesh_of(run):
    """The device mesh of the ranks: a dimension for sharding, and optional dimensions for replicas and for tensor
    parallelism."""
    settings, ranks = run.spec["fsdp2"], run.spec["world_size"]
    replicas, parts = settings["replicas"], settings["tensor_parallel"]
    sides = dict(replicate=replicas, shard=ranks // replicas // parts, tp=parts)
    sides = {name: side for name, side in sides.items() if side > 1 or name == "shard"}
    if len(sides) == 1:
        return init_device_mesh(run.device.type, (ranks,))
    return init_device_mesh(run.device.type, tuple(sides.values()), mesh_dim_names=tuple(sides))


def sharded_dimensions(settings):
    """The names of the mesh dimensions that `fully_shard` gets. The dimension of replicas is left out if a hook
    averages over the replicas."""
    has_replicas = settings["replicas"] > 1 and not settings["all_reduce_hook"]
    return ("replicate", "shard") if has_replicas else ("shard",)


def by_columns(shards):
    """A function for the placement of a parameter: a matrix is sharded along dimension 1, where FSDP2 requires a column
    for each of the `shards`. The default, `None`, is for other parameters."""
    return lambda parameter: Shard(1) if parameter.dim() == 2 and parameter.shape[1] >= shards else None


def average_in_hooks(modules, replicas):
    """Sets hooks that average gradients over the replicas after `fully_shard` has reduced them within each replica."""

    def average(reduced):
        dist.all_reduce(reduced, group=replicas)
        reduced.div_(replicas.size())

    for module in modules:
        module.set_all_reduce_hook(average)


def choose_divisor(run, modules):
    """Sets the divisor of the gradient sum over the ranks. Returns the factor for the loss that makes up for a divisor
    other than the number of ranks."""
    settings, ranks = run.spec["fsdp2"], run.spec["world_size"]
    factor = settings["gradient_divide_factor"]
    for module in modules:
        if factor is not None:
            module.set_gradient_divide_factor(factor)
        if settings["force_sum_reduction"]:
            module.set_force_sum_reduction_for_comms(True)
    # Ranks that hold different parts of a parameter (tensor parallelism) do not average the parameter's gradients.
    return (ranks // settings["tensor_parallel"] if factor is None else factor) / ranks


def cut(module, mesh):
    """Replaces every parameter by a `DTensor` for tensor parallelism. The present parameter is this rank's part of the
    `DTensor`: consecutive rows."""
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            part = DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False)
            child.register_parameter(name, torch.nn.Parameter(part, requires_grad=parameter.requires_grad))
