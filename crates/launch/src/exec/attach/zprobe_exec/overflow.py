"""Recognises windows of the first step whose gradients overflow: a trainer discards such windows until it has found its
loss scale.

After the first step, the number of microbatches shows that a whole window was given up. In the first step that number
is unknown.
"""

from zprobe_exec import fragments, objects


class Overflow:
    """Watches the gradients of the first step for an overflow."""

    def __init__(self, turns, names):
        self.turns, self.names = turns, names
        self.tensors = None  # The tensors of this rank's optimizers; `None` before the first backward.
        self.is_seen = False  # True if the window has a gradient that is not finite.
        self.skipped = 0  # The number of steps that DeepSpeed's engines have skipped so far.

    def after_backward(self):
        """Called after a backward of the first step: looks for gradients that are not finite."""
        if self.tensors is None:
            idle = self.turns.idle(self.names)
            self.tensors = [it for optimizer in idle for group in optimizer.param_groups for it in group["params"]]
        if not self.is_seen:
            self.is_seen = not all(fragments.is_finite(gradient) for gradient in self._gradients())

    def gives_up(self):
        """True if the window was given up since the last backward: a DeepSpeed engine has counted a skipped step, or
        gradients that were not finite were cleared."""
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
    """The number of steps that DeepSpeed's engines have skipped; `None` without such an engine."""
    engines = objects.named("DeepSpeedEngine")
    return sum(int(getattr(it, "skipped_steps", 0)) for it in engines) if engines else None
