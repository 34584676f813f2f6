"""The training script for DeepSpeed, ZeRO stages 0 to 3."""

import contextlib
import importlib
import os
import sys

from zprobe_rank import device

# The variable is set before the import of DeepSpeed, which chooses the accelerator.
os.environ.setdefault("DS_ACCELERATOR", device.kind)

import deepspeed
from deepspeed.accelerator import get_accelerator

from zprobe_rank.engines.deepspeed.experts import groups_for_optimizer, place_experts
from zprobe_rank.engines.deepspeed.eyes import Eyes
from zprobe_rank.engines.deepspeed.muon import Muon

# Some releases of DeepSpeed import these modules when they initialize, which may take seconds. The script imports the
# modules before the fork, so that all ranks share them.
for module in (
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.original_muon",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(module)


# DeepSpeed refuses fp16 on most CPUs, although torch computes fp16 on every CPU.
refuses_fp16 = device.kind == "cpu" and not get_accelerator().is_fp16_supported()
if refuses_fp16:
    get_accelerator().is_fp16_supported = lambda: True


def train(run):
    """Trains with the engine that `deepspeed.initialize` returns."""
    spec = run.spec
    if refuses_fp16 and spec["dtype"] == "fp16":
        why = "zprobe replaces CPU_Accelerator.is_fp16_supported, because torch computes fp16 on every CPU"
        run.channel.emit("not-observed", what="DeepSpeed's refusal of fp16 on this CPU", why=why)
    prepare(run)
    sequences = sequence_groups(spec)
    engine = set_up(run, sequences)
    coalesces = "coalesced-reduction" in spec["shapes"]
    for _ in run.steps():
        if run.resumes():
            with run.checkpoint() as folder:
                engine.save_checkpoint(folder)
                engine = set_up(run, sequences)
                engine.load_checkpoint(folder)
        coalescing = contextlib.ExitStack()
        if coalesces:
            coalescing.enter_context(engine.coalesce_grad_reduction())
        for microbatch in run.microbatches():
            for part in microbatch:
                if run.workload.goes_backward_again() and manages_accumulation(engine):
                    # With several backwards before a step, DeepSpeed needs to know which backward is the last.
                    engine.set_gradient_accumulation_boundary(part.is_last)
                backward(engine, part.loss(engine) / sequence_parallel(spec), "loss-backward" in spec["shapes"])
            with run.update() as update:
                if coalesces:
                    # DeepSpeed requires one context of coalesced reduction for each optimizer step, and no call of
                    # `step` inside of it.
                    if not microbatch.is_last:
                        continue
                    coalescing.close()
                    engine.set_gradient_accumulation_boundary(True)
                if not (manages_accumulation(engine) or microbatch.is_last):
                    continue
                engine.step()
                update.norm, update.limit = engine.get_global_grad_norm(), engine.gradient_clipping()


def set_up(run, sequences):
    """A new engine with a new model and a new optimizer."""
    spec, model = run.spec, run.build()
    parameters = run.trainable()
    if run.workload.expert is not None:
        name, _ = list(model.named_parameters())[run.workload.expert]
        place_experts(model, name, spec["world_size"])
        parameters = groups_for_optimizer(parameters)
    # DeepSpeed makes Muon itself, from its configuration.
    muon = Muon(run) if spec["optimizer"]["type"] == "muon" else None
    optimizer = run.optimizer(parameters) if muon is None else None
    engine, wrapper, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        model_parameters=None if muon is None else run.groups(parameters),
        # DeepSpeed steps the scheduler after each update.
        lr_scheduler=run.scheduler(optimizer) if muon is None else None,
        config=spec["deepspeed_config"],
        **sequences,
    )
    if muon is not None:
        muon.wrapper, optimizer = wrapper, engine.basic_optimizer
    if spec.get("override_loss_scale") is not None:
        wrapper.override_loss_scale(spec["override_loss_scale"])
    # DeepSpeed sums gradients over the ranks of a sequence, and averages them over the other ranks.
    run.watch(Eyes, [engine], optimizer, 1 / sequence_parallel(spec))
    return engine


def manages_accumulation(engine):
    """True if the engine counts the microbatches, and updates only in the last call of `step`. If DeepSpeed's setting
    `managed_gradient_accumulation` is false, each call of `step` is an update."""
    return getattr(engine, "managed_gradient_accumulation", lambda: True)()


def sequence_parallel(spec):
    """The number of ranks with parts of the same sequences; a specification from an older trace has no such number."""
    return spec.get("sequence_parallel", 1)


def backward(engine, loss, is_plain):
    """Runs the engine's backward, or torch's backward if `is_plain`."""
    if is_plain:
        # In a release without the method `scale`, the backward starts from the unscaled loss.
        scaled = engine.scale(loss) if hasattr(engine, "scale") else loss
        scaled.backward()
    else:
        engine.backward(loss)


def prepare(run):
    """Sets the variables that DeepSpeed's launcher sets, and joins the ranks."""
    avoid_compiling()
    os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
    if run.device.index is not None:
        # DeepSpeed uses the device with the number LOCAL_RANK; ranks that share a device get the same LOCAL_RANK.
        os.environ["LOCAL_RANK"] = str(run.device.index)
    deepspeed.init_distributed(dist_backend=run.spec["backend"], auto_mpi_discovery=False, verbose=False)


def sequence_groups(spec):
    """The extra argument of `deepspeed.initialize` for sequence parallelism; empty without it."""
    ranks = sequence_parallel(spec)
    if ranks == 1:
        return {}
    if spec["sequence_groups"] == "mesh":
        return dict(mesh_param=(spec["world_size"] // ranks, ranks))
    groups = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    groups.initialize_sequence_parallel(sequence_parallel_size=ranks)
    return dict(mpu=groups)


def avoid_compiling():
    """Keeps DeepSpeed from compiling a shared-memory collective for ranks on the CPU, which takes minutes. Without the
    collective the ranks use torch's own Gloo."""
    module = sys.modules.get("deepspeed.comm.torch")
    if module is not None and hasattr(module, "build_shm_op"):
        module.build_shm_op = lambda: None
