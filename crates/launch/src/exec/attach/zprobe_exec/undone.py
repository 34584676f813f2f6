"""Updates that something takes back: parameters that are nearer to what they were before the step than to what the
optimizer has left."""

import torch

from zprobe_exec import fragments
from zprobe_rank.tensors import flat

# Elements of each tensor that are compared.
SEEN = 64

# Largest part of an update that is left of one that was taken back, and the largest deviation from that part, as a
# share of the largest update of a tensor.
LEFT, SLACK = 0.95, 0.02


class Undone:
    """Elements of this rank's parameters before and after the last step of each optimizer."""

    def __init__(self):
        self.before = {}  # By identity of the optimizer: tuples of a tensor, the indices, and their values.
        self.updated = {}  # The same with the values after the step, too.

    def before_step(self, optimizer):
        """An optimizer is about to step."""
        tensors = [it for group in optimizer.param_groups for it in group["params"]]
        read = [(it, _some(it)) for it in tensors if it.grad is not None and not fragments.is_freed(flat(it))]
        self.before[id(optimizer)] = [(it, at, _values(it, at)) for it, at in read]

    def after_step(self, optimizer):
        """An optimizer has stepped."""
        held = self.before.pop(id(optimizer), [])
        self.updated[id(optimizer)] = [(it, at, old, _values(it, at)) for it, at, old in held]

    def tensors(self):
        """Tensors that have lost the same part of their update, with all others of their optimizer: what was put in
        their place is an average with older values, or those themselves."""
        found = []
        for held in self.updated.values():
            pairs = [(it, new - old, _values(it, at) - old, old) for it, at, old, new in held]
            pairs = [(it, update, left, old) for it, update, left, old in pairs if bool(update.any())]
            square = sum(float(update @ update) for _, update, _, _ in pairs)
            part = sum(float(update @ left) for _, update, left, _ in pairs) / square if square else 1.0
            if part <= LEFT and all(_is_part(part, *it) for it in pairs):
                found += [it for it, _, _, _ in pairs]
        return found


def _is_part(part, tensor, update, left, old):
    """True if `left` is this part of a tensor's update, as far as rounding lets one see."""
    rounding = 4 * torch.finfo(tensor.dtype).eps * float(old.abs().max())
    return float((left - part * update).abs().max()) <= SLACK * float(update.abs().max()) + rounding


def _some(tensor):
    return slice(None, None, fragments.stride(flat(tensor).numel(), SEEN))


def _values(tensor, at):
    return flat(tensor)[at].double().clone()
