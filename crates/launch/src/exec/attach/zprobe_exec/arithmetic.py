"""Records the source lines at which Python code multiplies or divides a loss.

A node of an autograd graph has the number by which a loss was divided, but not the line of the division. So the
operators of `torch.Tensor` are wrapped, and store the line in the node of each scalar that requires a gradient.
"""

import torch

from zprobe_exec import places

# The operators whose autograd node is a product or a quotient.
OPERATORS = ("__mul__", "__rmul__", "__imul__", "mul", "mul_", "__truediv__", "__itruediv__", "div", "div_")

# The key of the recorded place in the metadata of an autograd node.
_KEY = "zprobe.place"


class Arithmetic:
    """The wrappers of the operators, which are active from `install` to `release`."""

    def __init__(self):
        self.plain = {}

    def install(self):
        """Wraps the operators of `torch.Tensor`."""
        for name in OPERATORS:
            self.plain[name] = torch.Tensor.__dict__.get(name)
            setattr(torch.Tensor, name, _watched(getattr(torch.Tensor, name)))

    def release(self):
        """Restores the operators of `torch.Tensor`."""
        for name, plain in self.plain.items():
            if plain is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, plain)
        self.plain = {}


def place_of(node):
    """The place that is recorded in a node: the path, the line, the user's own line as `file:line`, and the calling
    package. `None` if the node has no recorded place."""
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
            # The result is no tensor or has no node, and gets no place.
            pass
        return result

    watched.__name__ = getattr(operator, "__name__", "operator")
    watched.__doc__ = operator.__doc__
    return watched
