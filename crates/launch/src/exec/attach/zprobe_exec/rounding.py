"""Finds updates that are lost to rounding: elements of half-precision parameters that a step leaves unchanged."""

import torch

from zprobe_exec import fragments
from zprobe_rank.tensors import flat

# The number of elements of each tensor that are compared.
SEEN = 64

# The dtypes in which an update may be smaller than half of the distance to the next number.
HALF = {torch.bfloat16: "bf16", torch.float16: "fp16"}

# Parts of the names of optimizer settings and states that compensate for rounding.
REMEDIES = ("master", "kahan", "compensation", "residual", "stochastic")

# The units in the last place by which a parameter may differ from its master weights: rounding may be stochastic.
ROUNDING = 2


class Rounding:
    """Compares the half-precision parameters of this rank's optimizers before and after each step."""

    def __init__(self, training):
        self.training = training
        self.before = {}  # By the `id` of the optimizer: tuples of a tensor, indices, and the values at these indices.

    def before_step(self, optimizer):
        """Called before an optimizer steps: copies some elements that have a gradient."""
        if self.training.settings["dry"]:
            return
        groups = [group["params"] for group in optimizer.param_groups if _is_judged(group)]
        held = [_with_gradient(tensor) for tensors in groups for tensor in tensors]
        self.before[id(optimizer)] = [it for it in held if it is not None]

    def after_step(self, optimizer, number):
        """Called after optimizer `number` has stepped: emits the share of elements that the step has left unchanged."""
        compared, seen, stayed, elements = set(), 0, 0.0, 0
        for tensor, at, old in self.before.pop(id(optimizer), []):
            state = optimizer.state.get(tensor, {})
            if not isinstance(state, dict) or self._is_exact(tensor, state):
                continue
            share = float((flat(tensor)[at] == old).double().mean())
            compared.add(HALF[tensor.dtype])
            seen += len(at)
            stayed += share * tensor.numel()
            elements += tensor.numel()
        if elements > 0:
            share, dtypes = stayed / elements, sorted(compared)
            step = self.training.step
            self.training.channel.emit(
                "updates-rounded", step=step, optimizer=number, dtypes=dtypes, seen=seen, share=share
            )

    def _is_exact(self, tensor, state):
        """True if the optimizer state of a tensor compensates for rounding, or if the size of the update means nothing:
        codes differ in size from gradients, which matters unless the optimizer divides by the size (`exp_avg_sq`)."""
        if any(_is_remedy(str(name)) for name in state):
            return True
        if not self.training.settings["observe"] and "exp_avg_sq" not in state:
            return True
        return any(_is_master(it, tensor) for it in state.values())


def _is_judged(group):
    """True unless a group's learning rate is 0 or still rises, or one of its settings compensates for rounding."""
    rate = float(group.get("lr", 0))
    is_whole = 0 < rate and rate >= float(group.get("initial_lr", rate)) / 2
    set_to = [value for name, value in group.items() if _is_remedy(name)]
    return is_whole and all(value is None or value is False for value in set_to)


def _with_gradient(tensor):
    """Some elements of a tensor that have a gradient, as (tensor, indices, values); `None` without such elements, or if
    the tensor is not in half precision."""
    gradient = fragments.gradient(tensor)
    if tensor.dtype not in HALF or gradient is None or fragments.is_freed(flat(tensor)):
        return None
    at = gradient.nonzero()[:, 0]
    at = at[:: max(1, len(at) // SEEN)]
    return (tensor, at, flat(tensor)[at].clone()) if len(at) > 0 else None


def _is_remedy(name):
    return any(part in name.lower() for part in REMEDIES)


def _is_master(held, tensor):
    """True if `held`, a tensor of the optimizer state, is the parameter in full precision."""
    if not isinstance(held, torch.Tensor) or held.dtype != torch.float32 or held.numel() != tensor.numel():
        return False
    used = flat(tensor)
    master, eps = flat(held), torch.finfo(used.dtype).eps
    return bool(((master - used.float()).abs() <= ROUNDING * eps * master.abs()).all()) and bool(master.any())
