"""The leaves of autograd graphs, and the replacement of their gradients."""

import torch

from zprobe_rank.graph import nodes_behind


class Leaves:
    """All leaves that a backward has reached. `gradient_of` is a function that returns the replacement of a leaf's
    gradient."""

    def __init__(self, name_of, gradient_of):
        self.name_of, self.gradient_of = name_of, gradient_of
        self.hooked, self.handles = {}, []

    def watch(self, tensors, visit):
        """Walks the graphs of `tensors`, and hooks every new leaf. Returns the number of AccumulateGrad nodes, the
        names of the leaves, and true if a leaf is an input. `visit` is called with every other node."""
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

    def are_inputs(self, tensors):
        """True if a backward of `tensors` reaches inputs and no parameter, like the first backward of GradCache, which
        ends at cached features. False if a hook or a custom function of autograd may begin another backward."""
        any_input = False
        for node in nodes_behind(tensor.grad_fn for tensor in tensors):
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return False
            variable = getattr(node, "variable", None)
            if variable is not None:
                has_hook = variable._backward_hooks or getattr(variable, "_post_accumulate_grad_hooks", None)
                is_param = isinstance(variable, torch.nn.Parameter) or self.name_of(variable) is not None
                if has_hook or is_param:
                    return False
                any_input = True
        return any_input and all(tensor.grad_fn is not None for tensor in tensors)

    def _hook(self, leaf):
        """The name of a leaf, which is hooked at its first visit; `None` for a leaf that is no parameter, such as an
        input that requires a gradient."""
        if id(leaf) not in self.hooked:
            name = self.name_of(leaf)
            # The leaf is kept alive, so that its `id` is not reused for another tensor.
            self.hooked[id(leaf)] = (name, leaf)
            if name is not None:
                self.handles.append(leaf.register_hook(lambda gradient: self.gradient_of(name, leaf, gradient)))
                # torch calls hooks in the order of registration. zprobe's hook is moved to the front, so that the
                # script's own hooks change the replaced gradient.
                hooks = leaf._backward_hooks
                for other in [it for it in hooks if it != self.handles[-1].id]:
                    hooks[other] = hooks.pop(other)
        return self.hooked[id(leaf)][0]

    def release(self):
        """Removes the hooks of all leaves."""
        for handle in self.handles:
            handle.remove()
        self.hooked, self.handles = {}, []
