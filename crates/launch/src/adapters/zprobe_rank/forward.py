"""Compares the parameters that modules use in forward with the parameters that the last step left."""

import torch

from zprobe_rank.tensors import flat


class ForwardWatch:
    """Compares the parameters that the forward of each module uses. The hooks run after the engine's own hooks, which
    gather the parameters of the module."""

    def __init__(self, places):
        """To be called after the engine has wrapped the model or registered its hooks. `places` are those of `Run`."""
        #: The parameters after the last step: tensors of the whole shapes, in the order of the model.
        self.left = None
        self.compared = []
        own = {}
        for module, name, index in places:
            own.setdefault(module, {})[name] = index
        for module, indices in own.items():
            module.register_forward_pre_hook(self._hook(indices))

    def take(self):
        """The comparisons since the last call, as the argument of `differences`."""
        compared, self.compared = self.compared, []
        return compared

    def _hook(self, own):
        def compare(module, _inputs):
            for name, index in own.items():
                self._compare(index, flat(getattr(module, name)))

        return compare

    def _compare(self, index, used):
        # The dtype of an engine's computation may be narrower than the dtype of its parameters.
        left = self.left[index].reshape(-1).to(used.dtype)
        if len(used) != len(left):
            self.compared.append((index, len(left), 0))
            return
        differs = (used != left) & ~(used.isnan() & left.isnan())
        # The results stay on the parameter's device, so that the host does not wait for them.
        self.compared.append((index, differs.sum(), differs.to(torch.uint8).argmax() if len(left) else 0))


def differences(compared):
    """The parameters that differed in a comparison, ordered by index, each with the number of differing elements and
    the first of them."""
    found = {index: (int(count), int(first)) for index, count, first in compared if int(count) > 0}
    return [dict(param=index, elements=n, first=first) for index, (n, first) in sorted(found.items())]
