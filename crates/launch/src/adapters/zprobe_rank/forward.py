"""Compares the parameters that modules use in forward and backward with the parameters that the last step left."""

import torch

from zprobe_rank.tensors import flat


class ForwardWatch:
    """Compares the parameters that the forward and the backward of each module use. The hooks run after the engine's
    own hooks, which gather the parameters of the module."""

    def __init__(self, places, nodes=()):
        """To be called after the engine has wrapped the model or registered its hooks. `places` are those of `Run`;
        `nodes` are the modules of the coded model, whose backward is watched."""
        #: The parameters after the last step: tensors of the whole shapes, in the order of the model.
        self.left = None
        self.compared, self.compared_in_backward = [], []
        own = {}
        for module, name, index in places:
            own.setdefault(module, {})[name] = index
        for module, indices in own.items():
            module.register_forward_pre_hook(self._hook(indices))
            if module in nodes:
                module.used_in_backward = self._in_backward(module, indices)

    def take(self):
        """The comparisons in forward since the last call, as the argument of `differences`."""
        compared, self.compared = self.compared, []
        return compared

    def take_backward(self):
        """The comparisons in backward since the last call, as the argument of `differences`."""
        compared, self.compared_in_backward = self.compared_in_backward, []
        return compared

    def _hook(self, own):
        def compare(module, _inputs):
            for name, index in own.items():
                self.compared.append(self._compare(index, flat(getattr(module, name))))

        return compare

    def _in_backward(self, module, own):
        def compare(name):
            self.compared_in_backward.append(self._compare(own[name], flat(getattr(module, name))))

        return compare

    def _compare(self, index, used):
        """The comparison of a parameter: its index, the number of differing elements, and the first of them."""
        # The dtype of an engine's computation may be narrower than the dtype of its parameters.
        left = self.left[index].reshape(-1).to(used.dtype)
        if len(used) != len(left):
            return index, len(left), 0
        differs = (used != left) & ~(used.isnan() & left.isnan())
        # The results stay on the parameter's device, so that the host does not wait for them.
        return index, differs.sum(), differs.to(torch.uint8).argmax() if len(left) else 0


def differences(compared):
    """The parameters that differed in a comparison, ordered by index, each with the number of differing elements and
    the first of them."""
    found = {index: (int(count), int(first)) for index, count, first in compared if int(count) > 0}
    return [dict(param=index, elements=n, first=first) for index, (n, first) in sorted(found.items())]
