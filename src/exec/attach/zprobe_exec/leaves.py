"""The leaves of autograd graphs, and what takes the place of their gradients."""

import torch

from zprobe_rank.graph import nodes_behind

# All codes and stamps are multiples of this: small enough that no update moves a parameter far, and a
# power of two, so that nothing is rounded.
UNIT = 2.0**-10


class Leaves:
    """All leaves that a backward has reached; `gradient_of` says what replaces their gradients."""

    def __init__(self, name_of, gradient_of):
        self.name_of, self.gradient_of = name_of, gradient_of
        self.hooked = {}

    def watch(self, tensors, visit):
        """Walks the graphs of some tensors, hooks every leaf that is new, and returns the number of
        AccumulateGrad nodes and the names of the leaves. Every other node is shown to `visit`."""
        nodes, reached = 0, []
        for tensor in tensors:
            if tensor.grad_fn is None and tensor.requires_grad:
                nodes += 1
                reached.append(self._hook(tensor))
        for node in nodes_behind(tensor.grad_fn for tensor in tensors):
            variable = getattr(node, "variable", None)
            if variable is not None:
                nodes += 1
                reached.append(self._hook(variable))
            else:
                visit(node)
        return nodes, sorted({name for name in reached if name is not None})

    def _hook(self, leaf):
        """The name of a leaf, which is hooked when it is met for the first time; None for a leaf that is
        no parameter, such as an input with a gradient of its own."""
        if id(leaf) not in self.hooked:
            name = self.name_of(leaf)
            # Kept alive, so that no other tensor gets its identity.
            self.hooked[id(leaf)] = (name, leaf)
            if name is not None:
                handle = leaf.register_hook(lambda gradient: self.gradient_of(name, gradient))
                # The script's own hooks change what this one returns, and not the other way round: torch
                # calls them in the order in which they were put in.
                hooks = leaf._backward_hooks
                for other in [it for it in hooks if it != handle.id]:
                    hooks[other] = hooks.pop(other)
        return self.hooked[id(leaf)][0]


class Coded:
    """Gradients that are codes: rows of a Walsh-Hadamard matrix, one for each rank and microbatch. In the
    first step, address stamps lie between them."""

    def __init__(self, code, starts, stamp=None):
        """`starts`: place of each parameter in the flat order, by name."""
        self.code, self.starts, self.stamp = code, starts, stamp
        self.signs, self.stamps = {}, {}

    def gradient(self, name, gradient, column):
        """The code of gradient `column` in the elements of a parameter."""
        start, size, length = self.starts[name], gradient.numel(), self.code.length
        key = (name, gradient.device)
        if key not in self.signs:
            signs = self.code.signs(range(start, start + size)).to(torch.int8)
            self.signs[key] = signs.to(gradient.device)
        period = self.code.period(column, start).to(gradient.device, gradient.dtype) * UNIT
        whole = size - size % length
        signs, values = self.signs[key], torch.empty(size, dtype=gradient.dtype, device=gradient.device)
        torch.mul(signs[:whole].view(-1, length), period, out=values[:whole].view(-1, length))
        torch.mul(signs[whole:], period[: size - whole], out=values[whole:])
        if self.stamp is not None:
            if key not in self.stamps:
                self.stamps[key] = self.stamp.values(name, size).to(gradient.device)
            stamps = self.stamps[key]
            values = torch.where(stamps == 0, values, stamps.to(gradient.dtype) * UNIT)
        return values.view(gradient.shape)
