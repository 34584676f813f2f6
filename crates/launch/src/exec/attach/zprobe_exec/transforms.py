"""Transformations of whole gradients before an optimizer consumes them: Muon's orthogonalisation in an engine.

An optimizer that transforms its gradients by itself does so within its step, which is its own affair.
"""

import functools
import sys

# Functions of engines that orthogonalise a gradient: pairs of a module and a name.
ORTHOGONALISING = [("deepspeed.runtime.zero.muon.original_muon", "muon_update")]


class Transforms:
    """The calls of functions that transform gradients."""

    def __init__(self, see):
        """`see` is called with the kind of a transformation whenever there is one; it must not raise."""
        self.see = see
        self.replaced = []

    def watch(self):
        """Watches the functions of the engines that are loaded."""
        for module, name in ORTHOGONALISING:
            function = getattr(sys.modules.get(module), name, None)
            if callable(function):
                self.replaced.append((sys.modules[module], name, function))
                setattr(sys.modules[module], name, self._seen(function))

    def release(self):
        """Puts the functions back."""
        for module, name, function in self.replaced:
            setattr(module, name, function)
        self.replaced = []

    def _seen(self, function):
        @functools.wraps(function)
        def seen(*args, **kwargs):
            self.see("orthogonalised")
            return function(*args, **kwargs)

        return seen
