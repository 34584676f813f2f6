"""DeepSpeed, stages 0 to 3."""

import contextlib
import importlib
import os
import sys

from zprobe_rank import device

# Set before the import, during which DeepSpeed chooses its accelerator.
os.environ.setdefault("DS_ACCELERATOR", device.kind)

import deepspeed
import torch
import torch.distributed as dist

from zprobe_rank.engines.base import BaseEngine
from zprobe_rank.engines.deepspeed.experts import groups_for_optimizer, place_experts
from zprobe_rank.engines.deepspeed.eyes import Eyes

# Releases import these while they initialize, some for seconds; here all ranks share them.
for module in (
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.original_muon",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(module)


class Engine(BaseEngine):
    """The engine that `deepspeed.initialize` returns."""

    packages = ("deepspeed",)

    def set_up(self):
        avoid_compiling()
        # As DeepSpeed's own launcher sets it.
        os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
        if self.device().index is not None:
            # DeepSpeed takes the device of this number; ranks that share one have the same.
            os.environ["LOCAL_RANK"] = str(self.device().index)
        deepspeed.init_distributed(dist_backend=self.spec["backend"], auto_mpi_discovery=False, verbose=False)
        parameters = self.trainable()
        if self.workload.expert is not None:
            name, _ = list(self.model.named_parameters())[self.workload.expert]
            place_experts(self.model, name, self.spec["world_size"])
            parameters = groups_for_optimizer(parameters)
        self.optimizer = self.make_optimizer(parameters)
        # Traces of older releases, whose runs are made again, have none.
        self.sequence_parallel = self.spec.get("sequence_parallel", 1)
        self.engine, self.wrapper, _, _ = deepspeed.initialize(
            model=self.model,
            optimizer=self.optimizer,
            config=self.spec["deepspeed_config"],
            **sequence_groups(self.spec, self.sequence_parallel),
        )
        override = self.spec.get("override_loss_scale")
        if override is not None:
            self.wrapper.override_loss_scale(override)
        self.coalesces, self.coalescing = "coalesced-reduction" in self.spec["shapes"], contextlib.ExitStack()
        self.scale = None
        self.several_backwards = self.workload.goes_backward_again()
        self.eyes = Eyes([self.engine])

    def gathers_for_forward(self):
        return self.spec["stage"] == 3

    def begin(self, step, microbatch):
        if microbatch == 0:
            self.skipped = self.engine.skipped_steps
            if self.coalesces:
                self.coalescing.enter_context(self.engine.coalesce_grad_reduction())
        super().begin(step, microbatch)

    def accumulation(self, final):
        if self.several_backwards:
            # With several backwards before a step, DeepSpeed has to be told which one is the last.
            self.engine.set_gradient_accumulation_boundary(final)
        return super().accumulation(final)

    def forward(self, *data):
        return self.engine(*data)

    def backward(self, loss):
        self.scale = loss_scale(self.wrapper)
        # DeepSpeed sums over the ranks of a sequence, and averages over the others.
        loss = loss / self.sequence_parallel
        if "loss-backward" in self.spec["shapes"]:
            # A loss without a scale may go backward as it is, also where a release has no such method.
            scaled = self.engine.scale(loss) if hasattr(self.engine, "scale") else loss
            scaled.backward()
        else:
            self.engine.backward(loss)

    def step(self, boundary):
        if self.coalesces:
            # One such context for each optimizer step, and within it no call of `step`.
            if not boundary:
                return
            self.coalescing.close()
            self.engine.set_gradient_accumulation_boundary(True)
        self.engine.step()

    def parameters(self):
        """Every parameter whole, in the run's dtype; stage 3 gathers them for that."""
        parameters = list(self.model.parameters())
        if self.spec["stage"] < 3:
            return [parameter.detach() for parameter in parameters]
        with deepspeed.zero.GatheredParameters(parameters):
            return [parameter.detach().clone() for parameter in parameters]

    def hint(self, fragment):
        """`DeepSpeedZeroOptimizer` knows the parameters of each partition, and where the first is cut. Those of
        `BF16_Optimizer` are equal parts of its parameters, one behind the other, and those of
        `DeepSpeedZeroOptimizer_Stage3` the rank's shards of a sub-group's parameters."""
        wrapper = self.wrapper
        for group, partition in enumerate(getattr(wrapper, "fp32_partitioned_groups_flat", [])):
            if partition is fragment:
                parameters = wrapper.fp16_groups[group]
                held = [self.eyes.index[id(parameter)] for parameter in parameters]
                return held[0], dist.get_rank() * parameters[0].ds_tensor.ds_numel, held[1:]
        for group, partition in enumerate(getattr(wrapper, "fp32_groups_flat_partition", [])):
            if partition is fragment:
                rank = dist.get_rank(wrapper.real_dp_process_group[group])
                return self._at(wrapper.bf16_groups[group], rank * partition.numel())
        partitions = getattr(wrapper, "single_partition_of_fp32_groups", [])
        for group, partition in enumerate(partitions):
            if partition is fragment and hasattr(wrapper, "first_offset"):
                held = [self.eyes.index[id(parameter)] for parameter in wrapper.params_in_partition[group]]
                # A whole number, but before 0.19.7 its type is float.
                return (held[0], int(wrapper.first_offset[group]), held[1:]) if held else None
        return super().hint(fragment)

    def accumulated(self, microbatch):
        """numel elements: those of BF16_Optimizer's accumulator, or of the parameters' own gradients in stages 0
        and 1; their dtype is that of `summed`."""
        boundary = microbatch + 1 == self.spec["gradient_accumulation_steps"]
        return None if boundary else self.summed(self.sequence_parallel)

    def before_step(self):
        """numel elements, as in `accumulated`. Where stages partition gradients, a rank holds its own part only;
        the optimizer's input shows that."""
        whole = hasattr(self.wrapper, "fp32_groups_gradients") or not hasattr(self.wrapper, "partition_gradients")
        return self.summed() if whole else None

    def summed(self, factor=1):
        """fp32 where gradients are accumulated in fp32 or have a loss scale, which is taken out; otherwise the run's
        dtype. `factor` is a power of two."""
        if hasattr(self.wrapper, "fp32_groups_gradients"):
            return self._pieces(torch.float32, lambda flat: flat * factor)
        wide = getattr(self.wrapper, "use_grad_accum_attribute", False) or self.scale is not None
        # Scales are powers of two, so that this is exact.
        scale = self.scale or 1.0
        return self._pieces(None, lambda flat: (flat.float() / scale if wide else flat) * factor)

    def scaling(self):
        # Without a scale, too, an optimizer may find an overflow and skip the step.
        overflow = getattr(self.wrapper, "overflow", None)
        if overflow is None and self.scale is None:
            return None
        return self.scale or 1.0, self.engine.skipped_steps > self.skipped

    def gradient_norm(self):
        norm = self.engine.get_global_grad_norm()
        return None if norm is None else (float(norm), float(self.engine.gradient_clipping()))

    def _at(self, parameters, place):
        """The parameter at a place of some that lie one behind the other, the offset in it, and those behind it."""
        indices = [self.eyes.index[id(parameter)] for parameter in parameters]
        for number, parameter in enumerate(parameters):
            if place < parameter.numel():
                return indices[number], place, indices[number + 1 :]
            place -= parameter.numel()
        return None


def sequence_groups(spec, ranks):
    """The argument with which DeepSpeed is told of groups of so many ranks that have parts of the same sequences."""
    if ranks == 1:
        return {}
    if spec["sequence_groups"] == "mesh":
        return dict(mesh_param=(spec["world_size"] // ranks, ranks))
    groups = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    groups.initialize_sequence_parallel(sequence_parallel_size=ranks)
    return dict(mpu=groups)


def loss_scale(wrapper):
    """The current loss scale of an fp16 optimizer; None for the others."""
    scale = getattr(wrapper, "cur_scale", getattr(wrapper, "loss_scale", None))
    return float(scale) if isinstance(scale, (int, float)) else None


def avoid_compiling():
    """Keeps DeepSpeed from compiling a shared-memory collective for CPU ranks, which takes minutes;
    without it they use torch's own Gloo."""
    module = sys.modules.get("deepspeed.comm.torch")
    if module is not None and hasattr(module, "build_shm_op"):
        module.build_shm_op = lambda: None
