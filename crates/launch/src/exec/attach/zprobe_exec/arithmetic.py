"""Scalars that are multiplied or divided in Python: the lines at which that happens.

The nodes of an autograd graph say which number a loss was divided by, and not where. So the operators of
`torch.Tensor` note it on the node, for scalars that require a gradient.
"""

import torch

from zprobe_exec import places

# Operators that lead to a node of a product or a quotient.
OPERATORS = ("__mul__", "__rmul__", "__imul__", "mul", "mul_", "__truediv__", "__itruediv__", "div", "div_")

# Key of what is noted in the metadata of a node.
_KEY = "zprobe.place"


class Arithmetic:
    """The watch over the operators, from `install` to `release`."""

    def __init__(self):
        self.plain = {}

    def install(self):
        """Puts the watch into `torch.Tensor`."""
        for name in OPERATORS:
            self.plain[name] = torch.Tensor.__dict__.get(name)
            setattr(torch.Tensor, name, _watched(getattr(torch.Tensor, name)))

    def release(self):
        """Takes the watch away."""
        for name, plain in self.plain.items():
            if plain is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, plain)
        self.plain = {}


def place_of(node):
    """Path, line, the user's own line as `file:line`, and the package that called; None where nothing was noted."""
    return node.metadata.get(_KEY)


def _watched(operator):
    def watched(self, *args, **kwargs):
        result = operator(self, *args, **kwargs)
        try:
            if result.dim() == 0 and result.requires_grad and not torch.compiler.is_compiling():
                frame = places.caller(1)
                own = (places.own_line(frame), places.package(frame))
                result.grad_fn.metadata[_KEY] = (frame.f_code.co_filename, frame.f_lineno) + own
        except Exception:
            # A result of another kind, or one without a node: it has no place.
            pass
        return result

    watched.__name__ = getattr(operator, "__name__", "operator")
    watched.__doc__ = operator.__doc__
    return watched
