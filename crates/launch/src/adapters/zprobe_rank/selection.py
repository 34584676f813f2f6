"""Selects the recorded buffers of a run, as `Recording` in `spec/recording.rs` describes."""


class Selection:
    """The buffers of one rank that the trace of the run holds."""

    def __init__(self, spec, rank):
        recording = spec["recording"]
        self.last = spec["steps"]
        self.steps, self.microbatches = (_set(recording[key]) for key in ("steps", "microbatches"))
        self.content = rank in _set(recording["ranks"])

    def has(self, point, step, microbatch):
        """True if a buffer is recorded. The weights before a recorded step are recorded, too."""
        if step is None:
            return True
        inside = microbatch is None or microbatch in self.microbatches
        before = point in ("master-weights", "parameters") and step + 1 < self.last
        return step in self.steps and inside or before and step + 1 in self.steps

    def has_content(self, point):
        """True if the content of a buffer is recorded in addition to the digest and the norm."""
        return self.content or point not in ("accumulator", "local-gradient")


class _All:
    """The set of all numbers."""

    def __contains__(self, number):
        return True


def _set(numbers):
    return _All() if numbers is None else frozenset(numbers)
