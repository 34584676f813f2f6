"""What the inner optimizer's step consumes: the one truth that all engines share."""

import torch


class OptimizerTap:
    """Watches a torch optimizer through its official hook.

    The engine may call `step` several times for one step of its own (DeepSpeed's stage 3 does, once
    for each group), each time with other fragments.
    """

    def __init__(self, optimizer, placement, hint, channel):
        self.optimizer, self.placement, self.channel = optimizer, placement, channel
        self.hint = hint  # Where the engine would look for a fragment: `BaseEngine.hint`.
        self.fragments, self.segments = [], []
        self.held = []  # Content of each fragment when it was last recorded, or first met.
        self.index = {}
        self.announced = 0
        self.consumed = {}
        self.active = False
        optimizer.register_step_pre_hook(self._before_step)

    def activate(self):
        """Begins to watch: while they set up, engines take steps of their own, with zeros."""
        self.active = True
        self._meet()
        self._announce()

    def record(self, step):
        """Records what was consumed since the last call; no input if no step was taken."""
        self._announce()
        if self.consumed:
            gradients = [
                torch.zeros_like(held) if gradient is None else gradient
                for gradient, held in zip(map(self.consumed.get, range(len(self.fragments))), self.held)
            ]
            self.channel.buffer("optimizer-input", "partition", torch.cat(gradients), step=step)
            self.consumed = {}
        self.held = [flat(fragment).clone() for fragment in self.fragments]
        if self.held:
            self.channel.buffer("master-weights", "partition", torch.cat(self.held), step=step)

    def _before_step(self, optimizer, args, kwargs):
        if not self.active:
            return
        self._meet()
        for group in optimizer.param_groups:
            for fragment in group["params"]:
                if fragment.grad is None or id(fragment) not in self.index:
                    continue
                index = self.index[id(fragment)]
                gradient = flat(fragment.grad).clone()
                if index in self.consumed:
                    # Stepped twice: for SGD that is the sum.
                    gradient += self.consumed[index]
                self.consumed[index] = gradient

    def _meet(self):
        """Makes the acquaintance of fragments before their first step."""
        for group in self.optimizer.param_groups:
            for fragment in group["params"]:
                if id(fragment) in self.index or flat(fragment).numel() == 0:
                    continue
                self.index[id(fragment)] = len(self.fragments)
                # Kept alive, so that nothing else gets its id.
                self.fragments.append(fragment)
                self.held.append(flat(fragment).clone())
                self.segments.extend(self.placement.locate(self.held[-1], self.hint(fragment)))

    def _announce(self):
        """Says where the fragments lie and what they held before their first step."""
        if self.announced < len(self.fragments):
            self.announced = len(self.fragments)
            self.channel.emit("layout", layout="partition", segments=self.segments)
            self.channel.buffer("master-weights", "partition", torch.cat(self.held))


def flat(tensor):
    """A tensor's content on this rank, flat."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)
