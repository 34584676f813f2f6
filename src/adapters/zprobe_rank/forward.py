"""The parameters that modules use in forward, beside those that the last step left."""

from zprobe_rank.optimizer_tap import flat


class ForwardWatch:
    """Compares parameters as forward uses them. An engine gathers them for each module, so that this is done
    after the engine's own hooks."""

    def __init__(self, model):
        """`model` is in the engine's hands already."""
        #: The parameters that the last step left: tensors in the model's order, of the whole shape.
        self.left = None
        self.differing = {}
        numbers = {id(parameter): index for index, parameter in enumerate(model.parameters())}
        for module in model.modules():
            own = {name: numbers[id(p)] for name, p in module._parameters.items() if id(p) in numbers}
            if own:
                module.register_forward_pre_hook(self._hook(own))

    def take(self):
        """Parameters with elements that differed since the last call, by index: number and first element."""
        differing, self.differing = self.differing, {}
        return [dict(param=index, elements=n, first=first) for index, (n, first) in sorted(differing.items())]

    def _hook(self, own):
        def compare(module, _inputs):
            for name, index in own.items():
                self._compare(index, flat(module._parameters[name]))

        return compare

    def _compare(self, index, used):
        # Engines may compute in fewer bits than they hold.
        left = self.left[index].reshape(-1).to(used.dtype)
        if len(used) != len(left):
            self.differing[index] = (len(left), 0)
            return
        differs = (used != left) & ~(used.isnan() & left.isnan())
        if bool(differs.any()):
            self.differing[index] = (int(differs.sum()), int(differs.nonzero()[0]))
