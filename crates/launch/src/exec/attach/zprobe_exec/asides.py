"""Backwards that are no part of an update: their gradients are cleared on purpose.

A loop that clears its gradients between two backwards of a step loses the first one's. It may also mean to: the first
backward of sharpness-aware minimisation only says where to look, that of an adversarial example is there for the
gradient of the input, and a window whose gradient is a spike is given up. What else happened tells them apart.
"""

import torch

from zprobe_exec import fragments
from zprobe_rank.tensors import flat

# Elements of each of the optimizers' tensors that tell whether it was changed.
SEEN = 64

# Largest change of an element that is rounding, as in weights that a forward normalises again, in units of its last
# place.
ROUNDING = 32


class Asides:
    """What happens to gradients and parameters between two backwards of a step."""

    def __init__(self, held):
        """`held` is what the optimizers of this rank hold."""
        self.held = held
        self.since = []  # Microbatches since gradients were cleared, each with true if it reached an input.
        self.contents = []

    def begin(self):
        """A step begins, or is begun again."""
        self.since = []

    def after_backward(self, microbatch, reached_input):
        """The backward of a microbatch is over, and gradients are as it left them."""
        if microbatch not in [known for known, _ in self.since]:
            self.since.append((microbatch, reached_input))
        self.contents = [_some(it.tensor) for it in self.held.all]

    def are_cleared(self):
        """True if the backwards since then had left gradients in what the optimizers hold, and there are
        none any more."""
        if not any(it.backward is not None and bool(it.backward.any()) for it in self.held.all):
            return False
        left = (fragments.gradient(it.tensor) for it in self.held.all)
        return not any(gradient is not None and bool(gradient.any()) for gradient in left)

    def reasons(self, reaches_input):
        """The microbatches whose gradients were cleared on purpose, each with the reason; to be asked when
        they were cleared. `reaches_input` is true if the backward that begins reaches an input, too."""
        since, self.since = self.since, []
        if self._are_changed():
            return [(microbatch, "parameters-changed") for microbatch, _ in since]
        inputs = [(microbatch, reached) for microbatch, reached in since if reached]
        if reaches_input:
            # An attack of several steps goes on, or every backward reaches an input.
            self.since = inputs
            return []
        return [(microbatch, "input-gradient") for microbatch, _ in inputs]

    def _are_changed(self):
        """True if most of what had a gradient was changed."""
        had = [(it, old) for it, old in zip(self.held.all, self.contents) if it.backward is not None]
        changed = [_differs(_some(it.tensor), old) for it, old in had]
        return 2 * sum(changed) > len(changed)


def _some(tensor):
    """Some elements of a tensor, from everywhere in it."""
    content = flat(tensor)
    if fragments.is_freed(content):
        return content.new_zeros(0)
    return content[:: fragments.stride(len(content), SEEN)].clone()


def _differs(new, old):
    """True if an element has changed by more than rounding."""
    if len(new) != len(old):
        return False
    return bool(((new - old).abs() > ROUNDING * torch.finfo(old.dtype).eps * old.abs()).any())
