"""Counts of the firings of DeepSpeed's gradient hooks.

The hooks are closures that call a method of the optimizer: that method is wrapped.
"""

import torch

# Methods that the hooks call, by class of the optimizer: the first that a release has counts.
CALLED_BY_HOOKS = {
    "BF16_Optimizer": ["accumulate_hp_grads_and_remove_lp"],
    "DeepSpeedZeroOptimizer": ["process_gradients", "reduce_ready_partitions_and_remove_grads"],
    "DeepSpeedZeroOptimizer_Stage3": ["reduce_ready_partitions_and_remove_grads"],
}


class HookCounts:
    """Firings, and gradients that autograd delivered, by parameter since they were last taken."""

    def __init__(self, parameters):
        self.index = {id(parameter): i for i, parameter in enumerate(parameters)}
        self.fired, self.arrived = [0] * len(parameters), [0] * len(parameters)
        for parameter in parameters:
            if parameter.requires_grad:
                # A hook of the tensor: one of its AccumulateGrad node would keep the node alive.
                parameter.register_hook(self._arrival(self.index[id(parameter)]))

    def count(self, parameter):
        """Counts a call that comes from a hook: one while autograd runs a graph."""
        if torch._C._current_graph_task_id() != -1 and id(parameter) in self.index:
            self.fired[self.index[id(parameter)]] += 1

    def take(self):
        """Returns the counts of firings and arrivals, and resets them."""
        taken = self.fired, self.arrived
        self.fired, self.arrived = [0] * len(self.fired), [0] * len(self.arrived)
        return taken

    def _arrival(self, index):
        def arrive(gradient):
            self.arrived[index] += 1

        return arrive


def watch_hooks(wrapper, parameters, not_observed):
    """Counts of the hooks of `wrapper`, DeepSpeed's optimizer; None if it has none."""
    names = CALLED_BY_HOOKS.get(type(wrapper).__name__)
    if names is None or not has_hooks(wrapper):
        return None
    name = next((name for name in names if hasattr(wrapper, name)), None)
    if name is None:
        not_observed("gradient hooks", "%s has none of %s" % (type(wrapper).__name__, ", ".join(names)))
        return None
    counts, function = HookCounts(parameters), getattr(wrapper, name)

    def counting(parameter, *args, **kwargs):
        counts.count(parameter)
        return function(parameter, *args, **kwargs)

    setattr(wrapper, name, counting)
    return counts


def has_hooks(wrapper):
    """True if this configuration registered gradient hooks at all."""
    if type(wrapper).__name__ == "BF16_Optimizer":
        return bool(getattr(wrapper, "immediate_grad_update", False))
    return bool(getattr(wrapper, "_grad_acc_hooks", True))
