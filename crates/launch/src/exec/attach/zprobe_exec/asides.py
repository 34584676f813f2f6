"""Recognises backwards that take no part in an update, because the script clears their gradients on purpose.

A loop that clears gradients between two backwards of a step loses the gradients of the first backward. Some loops clear
gradients on purpose. The first backward of sharpness-aware minimisation only finds a direction, the backward of an
adversarial example yields the gradient of the input, and a loop discards a window with a spike in its gradient. Changed
parameters, gradients of inputs and the number of cleared microbatches distinguish these cases from a bug.
"""

import torch

from zprobe_exec import fragments
from zprobe_rank.tensors import flat

# The number of elements that are compared to see whether a tensor of an optimizer has changed.
SEEN = 64

# The largest change of an element that counts as rounding, in units in the last place. A forward that normalises its
# weights again may change an element by this much.
ROUNDING = 32


class Asides:
    """Watches gradients and parameters between two backwards of a step."""

    def __init__(self, held):
        """`held` are the `Fragments` of this rank's optimizers."""
        self.held = held
        # The microbatches since gradients were cleared: pairs of a microbatch, and true if its backward reached an
        # input.
        self.since = []
        self.contents = []

    def begin(self):
        """Called when a step begins, or begins again after its window was given up."""
        self.since = []

    def after_backward(self, microbatch, reached_input):
        """Called after the backward of a microbatch, before the script can change the gradients."""
        if microbatch not in [known for known, _ in self.since]:
            self.since.append((microbatch, reached_input))
        self.contents = [_some(it.tensor) for it in self.held.all]

    def are_cleared(self):
        """True if the last backward left gradients in the tensors of the optimizers, and all gradients are zero or
        gone now."""
        if not any(it.backward is not None and bool(it.backward.any()) for it in self.held.all):
            return False
        left = (fragments.gradient(it.tensor) for it in self.held.all)
        return not any(gradient is not None and bool(gradient.any()) for gradient in left)

    def reasons(self, reaches_input):
        """The microbatches whose gradients were cleared on purpose, each with the reason; to be called once after
        gradients were cleared. `reaches_input` is true if the backward that begins now reaches an input, too."""
        since, self.since = self.since, []
        if self._are_changed():
            return [(microbatch, "parameters-changed") for microbatch, _ in since]
        inputs = [(microbatch, reached) for microbatch, reached in since if reached]
        if reaches_input:
            # Either an adversarial attack of several steps continues, or every backward reaches an input.
            self.since = inputs
            return []
        return [(microbatch, "input-gradient") for microbatch, _ in inputs]

    def _are_changed(self):
        """True if most tensors that had a gradient were changed since the last backward."""
        had = [(it, old) for it, old in zip(self.held.all, self.contents) if it.backward is not None]
        changed = [_differs(_some(it.tensor), old) for it, old in had]
        return 2 * sum(changed) > len(changed)


def _some(tensor):
    """Copies of about `SEEN` elements, spread over the whole tensor; empty if the storage of the tensor is freed."""
    content = flat(tensor)
    if fragments.is_freed(content):
        return content.new_zeros(0)
    return content[:: fragments.stride(len(content), SEEN)].clone()


def _differs(new, old):
    """True if some element has changed by more than rounding explains."""
    if len(new) != len(old):
        return False
    return bool(((new - old).abs() > ROUNDING * torch.finfo(old.dtype).eps * old.abs()).any())
