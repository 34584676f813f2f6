"""Watches engines that transform whole gradients before an optimizer consumes them, as Muon's orthogonalisation does.

An optimizer that transforms its gradients itself does so within its step, which is not watched.
"""

import functools
import sys

# The functions of engines that orthogonalise a gradient, as pairs of a module and a name.
ORTHOGONALISING = [("deepspeed.runtime.zero.muon.original_muon", "muon_update")]


class Transforms:
    """Watches the calls of functions that transform gradients."""

    def __init__(self, see):
        """`see` is called with the kind of transformation at each call of a watched function; `see` must not raise."""
        self.see = see
        self.replaced = []

    def watch(self):
        """Wraps the transforming functions of all loaded engines."""
        for module, name in ORTHOGONALISING:
            function = getattr(sys.modules.get(module), name, None)
            if callable(function):
                self.replaced.append((sys.modules[module], name, function))
                setattr(sys.modules[module], name, self._seen(function))

    def release(self):
        """Restores the wrapped functions."""
        for module, name, function in self.replaced:
            setattr(module, name, function)
        self.replaced = []

    def _seen(self, function):
        @functools.wraps(function)
        def seen(*args, **kwargs):
            self.see("orthogonalised")
            return function(*args, **kwargs)

        return seen
