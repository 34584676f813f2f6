"""Backwards that are no part of an update: their gradients are cleared on purpose.

A loop that clears its gradients between two backwards of a step loses the first one's. It may also mean to: the first
backward of sharpness-aware minimisation only says where to look, that of an adversarial example is there for the
gradient of the input, and a window whose gradient is a spike is given up. What else happened tells them apart.
"""

import torch

from zprobe_exec import fragments

# Elements of an optimizer's tensor that tell whether it was changed.
SEEN = 64


class Asides:
    """What happens to gradients and parameters between two backwards of a step."""

    def __init__(self, held):
        """`held` is what the optimizers of this rank hold."""
        self.held = held
        self.since = []  # Microbatches since gradients were cleared, each with true if it reached an input.
        self.versions = self.content = None

    def begin(self):
        """A step begins, or is begun again."""
        self.since = []

    def after_backward(self, microbatch, reached_input):
        """The backward of a microbatch is over, and gradients are as it left them."""
        if microbatch not in [known for known, _ in self.since]:
            self.since.append((microbatch, reached_input))
        self.versions, self.content = self._versions(), self._content()

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
        if self._versions() != self.versions or not torch.equal(self._content(), self.content):
            return [(microbatch, "parameters-changed") for microbatch, _ in since]
        return [(microbatch, "input-gradient") for microbatch, reached in since if reached and not reaches_input]

    def _versions(self):
        return [it.tensor._version for it in self.held.all]

    def _content(self):
        """Some elements of the largest tensor: `tensor.data` is changed without a new version."""
        largest = max((it.tensor for it in self.held.all), key=lambda tensor: tensor.numel())
        return fragments.flat(largest)[:SEEN].clone()
