"""Observes the buffers of DeepSpeed, in ZeRO stages 0 to 3."""

import sys

import torch
import torch.distributed as dist

from zprobe_rank.engines.deepspeed.buckets import FLUSHES, FULL, Buckets
from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import dense

# The methods that gradient hooks call, by the class of DeepSpeed's optimizer. The first method that a release has is
# observed.
CALLED_BY_HOOKS = {
    "BF16_Optimizer": ["accumulate_hp_grads_and_remove_lp"],
    "DeepSpeedZeroOptimizer": ["process_gradients", "reduce_ready_partitions_and_remove_grads"],
    "DeepSpeedZeroOptimizer_Stage3": ["reduce_ready_partitions_and_remove_grads"],
}

# The attributes or methods of the engine, and of its optimizer, that are recorded as facts.
OF_ENGINE = ("zero_optimization_stage", "communication_data_type", "gradient_clipping")
OF_WRAPPER = ("overlap_comm", "contiguous_gradients", "reduce_scatter", "cpu_offload", "grad_acc_dtype")

# The counters of the engine, and the numbers of its dynamic loss scale, that a checkpoint has to keep.
COUNTERS = ("global_steps", "global_samples", "skipped_steps")
OF_SCALER = ("cur_iter", "last_overflow_iter", "cur_hysteresis")


class Eyes(BaseEyes):
    """Reads gradients from the fp32 accumulator of BF16_Optimizer, or in stages 0 and 1 from the parameters."""

    engine = "deepspeed"
    kind = "DeepSpeedEngine"
    most = 1

    def __init__(self, objects):
        super().__init__(objects)
        self.ds_engine, self.wrapper = objects[0], objects[0].optimizer
        self.counts = None  # By parameter number, pairs: firings of the hook, and delivered gradients.
        self.is_in_backward, self.waiting = False, []
        self.scale, self.skipped = None, 0  # The loss scale, and the number of steps skipped before the present step.

    def arm(self):
        self.wrap(self.ds_engine, "backward", self._enter_backward, self._leave_backward)

    def open(self, index, emit):
        super().open(index, emit)
        self._watch_hooks()
        self._watch_buckets()
        if hasattr(self.wrapper, "fp32_groups_gradients"):
            self.wrap(self.ds_engine, "allreduce_gradients", after=self._see_reduction)

    def begin(self, step, microbatch):
        if step != self.step:
            self.skipped = self.ds_engine.skipped_steps
        self.scale = loss_scale(self.wrapper)
        super().begin(step, microbatch)

    def when_over(self, look):
        if self.is_in_backward:
            # After autograd's backward, DeepSpeed may still accumulate gradients, and at a boundary DeepSpeed reduces
            # them.
            self.waiting.append(look)
        else:
            look()

    def describe(self):
        facts = {}
        for name in OF_ENGINE:
            value = getattr(self.ds_engine, name, None)
            if value is not None:
                facts[name] = str(value() if callable(value) else value)
        facts.update((name, str(getattr(self.wrapper, name))) for name in OF_WRAPPER if hasattr(self.wrapper, name))
        if "grad_acc_dtype" not in facts and hasattr(self.ds_engine, "get_data_types"):
            facts["grad_acc_dtype"] = str(self.ds_engine.get_data_types()[1])
        return type(self.wrapper).__name__, facts

    def pieces(self, fragment):
        """The pieces of parameters in a tensor of the optimizer, in the form of `BaseEyes.pieces`.

        A tensor of `DeepSpeedZeroOptimizer_Stage3` consists of the rank's shards of a sub-group's parameters, each
        padded. A tensor of the other optimizers is a partition of consecutive parameters. `DeepSpeedZeroOptimizer`
        knows the parameters of its partition and where the first parameter is cut. `BF16_Optimizer` cuts a group into
        equal parts.
        """
        wrapper = self.wrapper
        for group, partition in enumerate(getattr(wrapper, "fp32_partitioned_groups_flat", [])):
            if partition is fragment:
                return [own_shard(parameter) for parameter in wrapper.fp16_groups[group]]
        for group, partition in enumerate(getattr(wrapper, "fp32_groups_flat_partition", [])):
            if partition is fragment:
                rank = dist.get_rank(wrapper.real_dp_process_group[group])
                return consecutive(wrapper.bf16_groups[group], rank * partition.numel(), partition.numel())
        for group, partition in enumerate(getattr(wrapper, "single_partition_of_fp32_groups", [])):
            if partition is fragment and hasattr(wrapper, "first_offset"):
                # `first_offset` holds whole numbers, but as floats before DeepSpeed 0.19.7.
                first = int(wrapper.first_offset[group])
                return consecutive(wrapper.params_in_partition[group], first, partition.numel())
        return None

    def parameters(self, model):
        """The content of every parameter of a model in the run's dtype; in stage 3 the parameters are gathered."""
        if not self.gathers_for_forward():
            return super().parameters(model)
        import deepspeed

        parameters = list(model.parameters())
        with deepspeed.zero.GatheredParameters(parameters):
            return [parameter.detach().clone() for parameter in parameters]

    def gathers_for_forward(self):
        return self.ds_engine.zero_optimization_stage() == 3

    def has_reduced(self):
        return self.ds_engine.is_gradient_accumulation_boundary()

    def gradients(self):
        wrapper = self.wrapper
        if hasattr(wrapper, "fp32_groups_gradients"):
            pairs = zip(wrapper.bf16_groups, wrapper.fp32_groups_gradients)
            held = [pair for group, gradients in pairs for pair in zip(group, gradients)]
        elif self.gathers_for_forward() or getattr(wrapper, "partition_gradients", False):
            return None
        else:
            accumulates = getattr(wrapper, "use_grad_accum_attribute", False)
            accumulated = lambda it: getattr(it, "grad_accum", None) if accumulates else None
            parameters = self.ds_engine.module.parameters()
            held = [(it, it.grad if accumulated(it) is None else accumulated(it)) for it in parameters]
        held = ((self.index[id(it)], dense(gradient)) for it, gradient in held if id(it) in self.index)
        return {number: gradient for number, gradient in held if gradient is not None}

    def unscaled(self, gradient):
        """A part of a gradient, divided by the loss scale: in fp32 if there is a loss scale, or if DeepSpeed adds up
        gradients in fp32."""
        is_wide = getattr(self.wrapper, "use_grad_accum_attribute", False) or self.scale is not None
        if not is_wide or hasattr(self.wrapper, "fp32_groups_gradients"):
            return gradient
        # The division is exact, because loss scales are powers of two.
        return gradient.float() / (self.scale or 1.0)

    def reduced(self):
        """The reduced gradients right before the optimizer's step; `None` in the stages that partition gradients, where
        only the optimizer's input is recorded."""
        is_whole = hasattr(self.wrapper, "fp32_groups_gradients") or not hasattr(self.wrapper, "partition_gradients")
        return self.gradients() if is_whole else None

    def scaling(self, has_stepped):
        # An optimizer without a loss scale may also find an overflow and skip the step.
        if getattr(self.wrapper, "overflow", None) is None and self.scale is None:
            return None
        return self.scale or 1.0, self.ds_engine.skipped_steps > self.skipped

    def fragments(self):
        return getattr(self.wrapper, "fp32_partitioned_groups_flat", [])

    def numbers(self):
        engine = self.ds_engine
        numbers = {name: getattr(engine, name) for name in COUNTERS}
        # DeepSpeed does not save `micro_steps`, but a checkpoint at a boundary does not need more than the remainder.
        numbers["microbatches since the boundary"] = engine.micro_steps % engine.gradient_accumulation_steps()
        scale = loss_scale(self.wrapper)
        if scale is not None:
            numbers["loss scale"] = scale
            holders = [getattr(self.wrapper, name, self.wrapper) for name in ("loss_scaler", "loss_scale_config")]
            held = ((name, getattr(holder, name, None)) for holder in holders for name in OF_SCALER)
            numbers.update(("loss_scaler." + name, value) for name, value in held if isinstance(value, int))
        return numbers

    def fired(self):
        counts = self.counts
        if counts is not None:
            self.counts = {number: [0, 0] for number in counts}
        return counts

    def _enter_backward(self, *_args, **_kwargs):
        self.is_in_backward = True

    def _leave_backward(self, *_args, **_kwargs):
        self.is_in_backward = False
        while self.waiting:
            self.waiting.pop(0)()

    def _see_reduction(self, *_args, **_kwargs):
        """Calls `on_reduced` at a boundary, when BF16_Optimizer's accumulator holds the reduced gradients."""
        if self.ds_engine.is_gradient_accumulation_boundary():
            self.on_reduced()

    def _watch_hooks(self):
        """Begins to count the firings of DeepSpeed's gradient hooks, which are closures that call a method of the
        optimizer."""
        names = CALLED_BY_HOOKS.get(type(self.wrapper).__name__)
        if names is None or not has_hooks(self.wrapper):
            return
        name = next((name for name in names if hasattr(self.wrapper, name)), None)
        if name is None:
            why = "%s has none of the methods %s" % (type(self.wrapper).__name__, ", ".join(names))
            self.not_observed("gradient hooks", why)
            return
        parameters = (it for it in self.ds_engine.module.parameters() if it.requires_grad and id(it) in self.index)
        trained = {self.index[id(it)]: it for it in parameters}
        self.counts = {number: [0, 0] for number in trained}
        for number, parameter in trained.items():
            # The hook is on the tensor, because a hook on the AccumulateGrad node would keep the node alive.
            self.undo.append(parameter.register_hook(self._arrival(number)).remove)
        self.wrap(self.wrapper, name, self._see_firing)

    def _see_firing(self, parameter, *_args, **_kwargs):
        number = self.index.get(id(parameter))
        # The call comes from a hook if autograd is running a graph.
        if torch._C._current_graph_task_id() != -1 and number in self.counts:
            self.counts[number][0] += 1

    def _arrival(self, number):
        def arrive(_gradient):
            counts = self.counts.get(number)
            if counts is not None:
                counts[1] += 1

        return arrive

    def _watch_buckets(self):
        """Begins to watch the flushes of IPG buckets, if the optimizer has such buckets."""
        name = FLUSHES.get(type(self.wrapper).__name__)
        if name is None:
            return
        if not hasattr(self.wrapper, name):
            self.not_observed("IPG buckets", "%s has no method %s" % (type(self.wrapper).__name__, name))
            return
        buckets = Buckets(self.wrapper)

        def see_flush(*args, **kwargs):
            elements, params = buckets.content(args[0] if args else kwargs.get("comm_dtype"))
            numbers = [self.index.get(id(it)) for it in params]
            if None not in numbers:
                reason = buckets.reason(elements, is_called_by(FULL))
                self.flushed(reason, elements, buckets.capacity(), numbers)

        self.wrap(self.wrapper, name, see_flush)


def is_called_by(name):
    """True if a function called `name` is the caller of the wrapped method (`BaseEyes.wrap`) that runs now."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "wrapped":
        frame = frame.f_back
    return frame is not None and frame.f_back is not None and frame.f_back.f_code.co_name == name


def has_hooks(wrapper):
    """True if DeepSpeed's optimizer has registered gradient hooks in this configuration."""
    if type(wrapper).__name__ == "BF16_Optimizer":
        return bool(getattr(wrapper, "immediate_grad_update", False))
    return bool(getattr(wrapper, "_grad_acc_hooks", True))


def own_shard(parameter):
    """This rank's shard of a parameter of stage 3, as a piece in the form of `BaseEyes.pieces`."""
    room, size = parameter.ds_tensor.ds_numel, parameter.ds_numel
    # Newer releases store the rank's number. The parameters of an expert are cut for a smaller group of ranks.
    rank = getattr(parameter, "ds_zero_partition_rank", None)
    first = min((dist.get_rank(parameter.ds_process_group) if rank is None else rank) * room, size)
    return parameter, first, min(room, size - first), room


def consecutive(parameters, start, size):
    """The pieces of `size` elements from element `start` on, in consecutive parameters."""
    pieces = []
    for parameter in parameters:
        length = min(parameter.numel() - start, size)
        if length > 0:
            pieces.append((parameter, start, length, length))
            size -= length
        start = max(start - parameter.numel(), 0)
    return pieces


def loss_scale(wrapper):
    """The current loss scale of an fp16 optimizer; `None` for other optimizers."""
    scale = getattr(wrapper, "cur_scale", getattr(wrapper, "loss_scale", None))
    return float(scale) if isinstance(scale, (int, float)) else None
