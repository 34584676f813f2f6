"""Gradients that a kernel adds to a parameter's `main_grad` by itself, as kernels of Megatron-LM and Transformer Engine
do. Autograd then delivers a dummy, and `grad_added_to_main_grad` is true.

The gradient of such a parameter is the change of `main_grad` in the backward.
"""

from zprobe_exec.turns import Unreadable


class Fused:
    """The parameters to which a kernel may add gradients, with the contents of `main_grad` before the backward."""

    def __init__(self):
        self.before = {}  # Copies of `main_grad`, by the `id` of the parameter.
        self.plain = set()  # The `id` of each parameter whose gradients come from autograd.

    def before_backward(self, leaves):
        """Copies `main_grad` of those leaves whose gradients may not come from autograd."""
        for leaf in leaves:
            # Transformer Engine's own marker.
            if getattr(leaf, "skip_backward_post_hook", False):
                raise Unreadable("gradients of weights are computed after the backward; switch their delay off")
            known = id(leaf) in self.before or id(leaf) in self.plain
            if not known and hasattr(leaf, "grad_added_to_main_grad") and getattr(leaf, "main_grad", None) is not None:
                self.before[id(leaf)] = leaf.main_grad.detach().clone()

    def after_backward(self):
        """Drops the copies."""
        self.before = {}

    def gradient(self, leaf):
        """The gradient that a kernel has added to `main_grad` of a leaf; `None` if the gradient comes from autograd."""
        if not getattr(leaf, "grad_added_to_main_grad", False):
            self.plain.add(id(leaf))
            return None
        if id(leaf) not in self.before:
            raise Unreadable("a kernel began to add gradients of weights to main_grad after the first backward")
        return leaf.main_grad.detach() - self.before[id(leaf)]

    def settle(self, leaf, replacement):
        """Puts `replacement`, unless it is `None`, into `main_grad` of a leaf in place of the gradient that a kernel
        has added. A nested backward may add another gradient."""
        before, now = self.before[id(leaf)], leaf.main_grad.detach()
        if replacement is None:
            before.copy_(now)
        else:
            now.copy_(before.add_(replacement))
