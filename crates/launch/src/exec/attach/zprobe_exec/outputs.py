"""What DeepSpeed does to the gradients of its engine's outputs: where the script itself calls `loss.backward`, hooks on
them divide by the accumulation steps (`DeepSpeedEngine._backward_prologue_per_tensor`, from 0.18 on)."""

import functools
import sys


def watch(see):
    """Shows the gradients of an output to `see`, before such a hook and behind it. Returns what ends the watch."""
    engine = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    divide = getattr(engine, "_backward_prologue_per_tensor", None)
    if divide is None:
        return lambda: None

    @functools.wraps(divide)
    def watched(self, gradient):
        result = divide(self, gradient)
        see(gradient, result)
        return result

    engine._backward_prologue_per_tensor = watched
    return lambda: setattr(engine, "_backward_prologue_per_tensor", divide)
