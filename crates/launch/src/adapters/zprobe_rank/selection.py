"""The choice of the buffers of a run that are recorded: `Recording` in `spec/recording.rs`."""


class Selection:
    """The part of a run that its trace holds, for one rank."""

    def __init__(self, spec, rank):
        recording = spec["recording"]
        self.last = spec["steps"]
        self.steps, self.microbatches = (_set(recording[key]) for key in ("steps", "microbatches"))
        self.content = rank in _set(recording["ranks"])

    def has(self, point, step, microbatch):
        """True if a buffer is recorded; the weights before a recorded step are, too."""
        if step is None:
            return True
        inside = microbatch is None or microbatch in self.microbatches
        before = point in ("master-weights", "parameters") and step + 1 < self.last
        return step in self.steps and inside or before and step + 1 in self.steps

    def has_content(self, point):
        """True if a buffer's content is recorded, and not only its digest and norm."""
        return self.content or point not in ("accumulator", "local-gradient")


class _All:
    """A set that contains every number."""

    def __contains__(self, number):
        return True


def _set(numbers):
    return _All() if numbers is None else frozenset(numbers)
