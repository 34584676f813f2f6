"""What can be seen of DeepSpeed, stages 0 to 3."""

import sys

import torch

from zprobe_rank.engines.deepspeed.buckets import FLUSHES, FULL, Buckets
from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import flat

# Methods that gradient hooks call, by class of the optimizer: the first that a release has counts.
CALLED_BY_HOOKS = {
    "BF16_Optimizer": ["accumulate_hp_grads_and_remove_lp"],
    "DeepSpeedZeroOptimizer": ["process_gradients", "reduce_ready_partitions_and_remove_grads"],
    "DeepSpeedZeroOptimizer_Stage3": ["reduce_ready_partitions_and_remove_grads"],
}

# Facts that the engine and its optimizer tell by attributes or methods of these names.
OF_ENGINE = ("zero_optimization_stage", "communication_data_type", "gradient_clipping")
OF_WRAPPER = ("overlap_comm", "contiguous_gradients", "reduce_scatter", "cpu_offload", "grad_acc_dtype")


class Eyes(BaseEyes):
    """Gradients are those of BF16_Optimizer's accumulator, fp32, or in stages 0 and 1 the parameters' own."""

    engine = "deepspeed"
    kind = "DeepSpeedEngine"
    most = 1

    def __init__(self, objects, index):
        super().__init__(objects, index)
        self.ds_engine, self.wrapper = objects[0], objects[0].optimizer
        self.parameters = [it for it in self.ds_engine.module.parameters() if id(it) in index]
        self.counts = None  # Firings of hooks and arrivals of gradients, as pairs by number of the parameter.
        self.is_in_backward, self.waiting = False, []
        self.is_late = False  # True if they were opened within a backward, whose end they cannot see.

    def open(self, emit):
        super().open(emit)
        self.is_late = is_within(self.ds_engine, "backward")
        self.wrap(self.ds_engine, "backward", self._going_backward)
        self._watch_hooks()
        self._watch_buckets()
        if hasattr(self.wrapper, "fp32_groups_gradients"):
            self.wrap(self.ds_engine, "allreduce_gradients", self._reducing)

    def when_over(self, look):
        if self.is_in_backward:
            # Behind autograd's backward the engine may accumulate, and at a boundary it reduces.
            self.waiting.append(look)
        elif not self.is_late:
            look()
        self.is_late = False

    def describe(self):
        facts = {}
        for name in OF_ENGINE:
            value = getattr(self.ds_engine, name, None)
            if value is not None:
                facts[name] = str(value() if callable(value) else value)
        facts.update((name, str(getattr(self.wrapper, name))) for name in OF_WRAPPER if hasattr(self.wrapper, name))
        return type(self.wrapper).__name__, facts

    def has_reduced(self):
        return self.ds_engine.is_gradient_accumulation_boundary()

    def gradients(self):
        wrapper = self.wrapper
        if hasattr(wrapper, "fp32_groups_gradients"):
            pairs = zip(wrapper.bf16_groups, wrapper.fp32_groups_gradients)
            held = [pair for group, gradients in pairs for pair in zip(group, gradients)]
        elif self.ds_engine.zero_optimization_stage() == 3 or getattr(wrapper, "partition_gradients", False):
            return None
        else:
            accumulates = getattr(wrapper, "use_grad_accum_attribute", False)
            accumulated = lambda it: getattr(it, "grad_accum", None) if accumulates else None
            held = [(it, it.grad if accumulated(it) is None else accumulated(it)) for it in self.parameters]
        known = [(it, gradient) for it, gradient in held if gradient is not None and id(it) in self.index]
        return {self.index[id(it)]: flat(gradient) for it, gradient in known}

    def fired(self):
        counts = self.counts
        if counts is not None:
            self.counts = {number: [0, 0] for number in counts}
        return counts

    def _going_backward(self, backward, *args, **kwargs):
        self.is_in_backward = True
        try:
            return backward(*args, **kwargs)
        finally:
            self.is_in_backward = False
            while self.waiting:
                self.waiting.pop(0)()

    def _reducing(self, reduce, *args, **kwargs):
        """Looks at BF16_Optimizer's accumulator between the reduction and the step."""
        result = reduce(*args, **kwargs)
        if self.ds_engine.is_gradient_accumulation_boundary() and self.on_reduced is not None:
            self.on_reduced()
        return result

    def _watch_hooks(self):
        """Counts the firings of gradient hooks. They are closures that call a method of the optimizer."""
        names = CALLED_BY_HOOKS.get(type(self.wrapper).__name__)
        if names is None or not has_hooks(self.wrapper):
            return
        name = next((name for name in names if hasattr(self.wrapper, name)), None)
        if name is None:
            why = "%s has none of %s" % (type(self.wrapper).__name__, ", ".join(names))
            self.not_observed("gradient hooks", why)
            return
        trained = {self.index[id(it)]: it for it in self.parameters if it.requires_grad}
        self.counts = {number: [0, 0] for number in trained}
        for number, parameter in trained.items():
            # A hook of the tensor: one of its AccumulateGrad node would keep the node alive.
            self.undo.append(parameter.register_hook(self._arrival(number)).remove)
        self.wrap(self.wrapper, name, self._firing)

    def _firing(self, call, parameter, *args, **kwargs):
        number = self.index.get(id(parameter))
        # A call comes from a hook while autograd runs a graph.
        if torch._C._current_graph_task_id() != -1 and number in self.counts:
            self.counts[number][0] += 1
        return call(parameter, *args, **kwargs)

    def _arrival(self, number):
        def arrive(_gradient):
            self.counts[number][1] += 1

        return arrive

    def _watch_buckets(self):
        """Watches the flushes of IPG buckets, if the optimizer has any."""
        name = FLUSHES.get(type(self.wrapper).__name__)
        if name is None:
            return
        if not hasattr(self.wrapper, name):
            self.not_observed("IPG buckets", "%s has no %s" % (type(self.wrapper).__name__, name))
            return
        buckets = Buckets(self.wrapper)

        def flushing(flush, *args, **kwargs):
            dtype = args[0] if args else kwargs.get("comm_dtype")
            elements, params = buckets.content(dtype)
            # Behind this function, and the one that `wrap` puts in place.
            is_full = sys._getframe(2).f_code.co_name == FULL
            numbers = [self.index.get(id(it)) for it in params]
            if None not in numbers:
                self.flushed(buckets.reason(elements, is_full), elements, buckets.capacity(), numbers)
            return flush(*args, **kwargs)

        self.wrap(self.wrapper, name, flushing)


def is_within(holder, name):
    """True if a method of this name of an object is being called."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_locals.get("self") is holder:
            return True
        frame = frame.f_back
    return False


def has_hooks(wrapper):
    """True if this configuration registered gradient hooks at all."""
    if type(wrapper).__name__ == "BF16_Optimizer":
        return bool(getattr(wrapper, "immediate_grad_update", False))
    return bool(getattr(wrapper, "_grad_acc_hooks", True))
