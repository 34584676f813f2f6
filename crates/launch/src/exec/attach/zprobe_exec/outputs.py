"""Watches DeepSpeed's hooks on the outputs of its engine. If the script itself calls `loss.backward`, these hooks
divide gradients by the accumulation steps (`DeepSpeedEngine._backward_prologue_per_tensor`, from 0.18 on)."""

import functools
import sys


def watch(see):
    """Calls `see` with the gradients of an output before and after DeepSpeed's hook. Returns a function that ends the
    watch."""
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
