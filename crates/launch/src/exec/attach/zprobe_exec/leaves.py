"""The leaves of autograd graphs, and what takes the place of their gradients."""

import torch

from zprobe_rank.graph import nodes_behind


class Leaves:
    """All leaves that a backward has reached; `gradient_of` says what replaces their gradients."""

    def __init__(self, name_of, gradient_of):
        self.name_of, self.gradient_of = name_of, gradient_of
        self.hooked, self.handles = {}, []

    def watch(self, tensors, visit):
        """Walks the graphs of some tensors, hooks every leaf that is new, and returns the number of
        AccumulateGrad nodes, the names of the leaves, and true if one of them is an input. Every other node
        is shown to `visit`."""
        nodes, reached, inputs = 0, [], False
        for tensor in tensors:
            if tensor.grad_fn is None and tensor.requires_grad:
                nodes += 1
                reached.append(self._hook(tensor))
        for node in nodes_behind(tensor.grad_fn for tensor in tensors):
            variable = getattr(node, "variable", None)
            if variable is not None:
                nodes += 1
                reached.append(self._hook(variable))
                inputs = inputs or (reached[-1] is None and not isinstance(variable, torch.nn.Parameter))
            else:
                visit(node)
        return nodes, sorted({name for name in reached if name is not None}), inputs

    def _hook(self, leaf):
        """The name of a leaf, which is hooked when it is met for the first time; None for a leaf that is
        no parameter, such as an input with a gradient of its own."""
        if id(leaf) not in self.hooked:
            name = self.name_of(leaf)
            # Kept alive, so that no other tensor gets its identity.
            self.hooked[id(leaf)] = (name, leaf)
            if name is not None:
                self.handles.append(leaf.register_hook(lambda gradient: self.gradient_of(name, gradient)))
                # The script's own hooks change what this one returns, and not the other way round: torch
                # calls them in the order in which they were put in.
                hooks = leaf._backward_hooks
                for other in [it for it in hooks if it != self.handles[-1].id]:
                    hooks[other] = hooks.pop(other)
        return self.hooked[id(leaf)][0]

    def release(self):
        """Takes all hooks away."""
        for handle in self.handles:
            handle.remove()
        self.hooked, self.handles = {}, []
