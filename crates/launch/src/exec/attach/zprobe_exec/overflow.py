"""Windows of the first step whose gradients overflow: a trainer that looks for its loss scale gives them up.

Behind the first step the number of microbatches of a window tells that a whole window was given up. In the first one
that number is not known yet.
"""

from zprobe_exec import fragments, objects


class Overflow:
    """What the first step shows of an overflow."""

    def __init__(self, turns, names):
        self.turns, self.names = turns, names
        self.tensors = None  # What the optimizers of this rank hold.
        self.is_seen = False  # True if a gradient of this window is not finite.
        self.skipped = 0  # Steps that the engines of DeepSpeed have skipped so far.

    def after_backward(self):
        """A backward of the first step is over."""
        if self.tensors is None:
            idle = self.turns.idle(self.names)
            self.tensors = [it for optimizer in idle for group in optimizer.param_groups for it in group["params"]]
        if not self.is_seen:
            self.is_seen = not all(fragments.is_finite(gradient) for gradient in self._gradients())

    def gives_up(self):
        """True if the window was given up since the last backward: an engine says that it has skipped its step, or
        gradients that were not finite are cleared."""
        skipped, before = _skipped_steps(), self.skipped
        if skipped is not None:
            self.skipped = skipped
            return skipped > before
        if not self.is_seen or any(bool(gradient.any()) for gradient in self._gradients()):
            return False
        self.is_seen = False
        return True

    def _gradients(self):
        found = (fragments.gradient(tensor) for tensor in self.tensors or [])
        return [it for it in found if it is not None]


def _skipped_steps():
    """Number of steps that the engines of DeepSpeed have skipped; None if there is no such engine."""
    engines = objects.named("DeepSpeedEngine")
    return sum(int(getattr(it, "skipped_steps", 0)) for it in engines) if engines else None
