"""The parameters that modules use in forward, beside those that the last step left."""

import torch

from zprobe_rank.tensors import flat


class ForwardWatch:
    """Compares parameters as forward uses them. An engine gathers them for each module, so that this is done
    after the engine's own hooks."""

    def __init__(self, model):
        """`model` is in the engine's hands already."""
        #: The parameters that the last step left: tensors in the model's order, of the whole shape.
        self.left = None
        self.compared = []
        numbers = {id(parameter): index for index, parameter in enumerate(model.parameters())}
        for module in model.modules():
            own = {name: numbers[id(p)] for name, p in module._parameters.items() if id(p) in numbers}
            if own:
                module.register_forward_pre_hook(self._hook(own))

    def take(self):
        """The comparisons since the last call, for `differences`."""
        compared, self.compared = self.compared, []
        return compared

    def _hook(self, own):
        def compare(module, _inputs):
            for name, index in own.items():
                self._compare(index, flat(module._parameters[name]))

        return compare

    def _compare(self, index, used):
        # Engines may compute in fewer bits than they hold.
        left = self.left[index].reshape(-1).to(used.dtype)
        if len(used) != len(left):
            self.compared.append((index, len(left), 0))
            return
        differs = (used != left) & ~(used.isnan() & left.isnan())
        # Numbers on the parameter's device, which nobody waits for here.
        self.compared.append((index, differs.sum(), differs.to(torch.uint8).argmax() if len(left) else 0))


def differences(compared):
    """Parameters with elements that differed in some comparisons, by index: number and first element."""
    found = {index: (int(count), int(first)) for index, count, first in compared if int(count) > 0}
    return [dict(param=index, elements=n, first=first) for index, (n, first) in sorted(found.items())]
