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

from zprobe_rank.engines.base import BaseEngine, or_zeros
from zprobe_rank.engines.deepspeed.buckets import watch_buckets
from zprobe_rank.engines.deepspeed.experts import groups_for_optimizer, place_experts
from zprobe_rank.engines.deepspeed.hooks import watch_hooks
from zprobe_rank.sampler import Pieces

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
        self.hooks, self.buckets, self.scale = None, None, None
        self.several_backwards = self.workload.goes_backward_again()
        self.index = {id(parameter): i for i, parameter in enumerate(self.model.parameters())}

    def describe(self):
        facts = {}
        for name in ("zero_optimization_stage", "communication_data_type", "gradient_clipping"):
            value = getattr(self.engine, name, None)
            if value is not None:
                facts[name] = str(value() if callable(value) else value)
        for name in ("overlap_comm", "contiguous_gradients", "reduce_scatter", "cpu_offload", "grad_acc_dtype"):
            if hasattr(self.wrapper, name):
                facts[name] = str(getattr(self.wrapper, name))
        return type(self.wrapper).__name__, facts

    def observe(self):
        self.hooks = watch_hooks(self.wrapper, list(self.model.parameters()), self._not_observed)
        self.buckets = watch_buckets(self.wrapper, self.index, self.channel, self._not_observed)
        if hasattr(self.wrapper, "fp32_groups_gradients"):
            self._watch_reduction()

    def gathers_for_forward(self):
        return self.spec["stage"] == 3

    def begin(self, step, microbatch):
        if microbatch == 0:
            self.skipped = self.engine.skipped_steps
            if self.coalesces:
                self.coalescing.enter_context(self.engine.coalesce_grad_reduction())
        if self.buckets is not None:
            self.buckets.begin(step, microbatch)

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
                held = [self.index[id(parameter)] for parameter in parameters]
                return held[0], dist.get_rank() * parameters[0].ds_tensor.ds_numel, held[1:]
        for group, partition in enumerate(getattr(wrapper, "fp32_groups_flat_partition", [])):
            if partition is fragment:
                rank = dist.get_rank(wrapper.real_dp_process_group[group])
                return self._at(wrapper.bf16_groups[group], rank * partition.numel())
        partitions = getattr(wrapper, "single_partition_of_fp32_groups", [])
        for group, partition in enumerate(partitions):
            if partition is fragment and hasattr(wrapper, "first_offset"):
                held = [self.index[id(parameter)] for parameter in wrapper.params_in_partition[group]]
                # A whole number, but before 0.19.7 its type is float.
                return (held[0], int(wrapper.first_offset[group]), held[1:]) if held else None
        return super().hint(fragment)

    def fired(self):
        return None if self.hooks is None else self.hooks.take()

    def accumulated(self, microbatch):
        """numel elements: those of BF16_Optimizer's accumulator, or of the parameters' own gradients in stages 0
        and 1; their dtype is that of `_gradient_buffer`."""
        boundary = microbatch + 1 == self.spec["gradient_accumulation_steps"]
        return None if boundary else self._gradient_buffer(self.sequence_parallel)

    def before_step(self):
        """numel elements, as in `accumulated`. Where stages partition gradients, a rank holds its own part only;
        the optimizer's input shows that."""
        whole = hasattr(self.wrapper, "fp32_groups_gradients") or not hasattr(self.wrapper, "partition_gradients")
        return self._gradient_buffer() if whole else None

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
        indices = [self.index[id(parameter)] for parameter in parameters]
        for number, parameter in enumerate(parameters):
            if place < parameter.numel():
                return indices[number], place, indices[number + 1 :]
            place -= parameter.numel()
        return None

    def _watch_reduction(self):
        """Looks at BF16_Optimizer's accumulator between the reduction and the step."""
        reduce = self.engine.allreduce_gradients

        def reducing(*args, **kwargs):
            result = reduce(*args, **kwargs)
            if self.engine.is_gradient_accumulation_boundary() and self.on_reduced is not None:
                self.on_reduced(self._gradient_buffer())
            return result

        self.engine.allreduce_gradients = reducing

    def _not_observed(self, what, why):
        self.channel.emit("not-observed", what=what, why=why)

    def _gradient_buffer(self, factor=1):
        """The rank's gradients in the model's order, times a power of two, or None where they are not whole. fp32
        where they are accumulated in fp32 or have a loss scale, which is taken out; otherwise the run's dtype."""
        wrapper = self.wrapper
        parameters = list(self.model.parameters())
        if hasattr(wrapper, "fp32_groups_gradients"):
            held = {}
            for group, gradients in zip(wrapper.bf16_groups, wrapper.fp32_groups_gradients):
                held.update((id(p), gradient) for p, gradient in zip(group, gradients))
            gradients = [or_zeros(held.get(id(p)), p, torch.float32) for p in parameters]
            return Pieces(gradients, lambda flat: flat * factor)
        if self.spec["stage"] == 3 or getattr(wrapper, "partition_gradients", False):
            return None
        if getattr(wrapper, "use_grad_accum_attribute", False):
            gradients = [p.grad_accum if getattr(p, "grad_accum", None) is not None else p.grad for p in parameters]
            wide = True
        else:
            gradients = [p.grad for p in parameters]
            wide = self.scale is not None
        gradients = [or_zeros(gradient, p) for gradient, p in zip(gradients, parameters)]
        # Scales are powers of two, so that this is exact.
        scale = self.scale or 1.0
        return Pieces(gradients, lambda flat: (flat.float() / scale if wide else flat) * factor)


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
