"""The terms of a loss: the elements of each term with their weights, and the constant factors of the term."""

import re

import torch

from zprobe_exec import padding, places

# The largest relative difference of two consecutive weights that count as equal.
SAME = 1e-3

# The largest number of runs of equal weights that are reported for a term.
MOST_RUNS = 256

# The largest number of elements of a term in which runs of equal weights are searched.
MOST_ELEMENTS = 1 << 17

# Scalar tensors of narrow dtypes, which show whether another tensor was a Python number.
_BYTE, _HALF = torch.zeros((), dtype=torch.int8), torch.zeros((), dtype=torch.float16)

# The suffix of the names of autograd nodes.
_BACKWARD = re.compile(r"Backward\d*$")


class Constant:
    """A scalar by which a loss was multiplied or divided."""

    def __init__(self, factor, kind, divides, is_whole, place):
        self.factor, self.kind, self.divides, self.is_whole = factor, kind, divides, is_whole
        self.path, self.line, self.at, self.by = place or (None, None, None, None)

    @staticmethod
    def of(value, divides, is_whole, place):
        """The constant of a node that has saved `value`. A Python number is saved as a tensor whose dtype yields to the
        dtype of any other tensor."""
        kind = "tensor"
        if not isinstance(value, torch.Tensor):
            kind = "int" if isinstance(value, int) else "float"
        elif value.dim() == 0 and torch.result_type(value, _BYTE) == torch.int8:
            kind = "int"
        elif value.dtype == torch.float64 and value.dim() == 0 and torch.result_type(value, _HALF) == torch.float16:
            kind = "float"
        return Constant(float(value), kind, divides, is_whole, place)

    def fields(self):
        """The fields of this constant in the event `loss-weighed`."""
        is_number = self.kind != "tensor" and self.path is not None
        numbers = places.written(self.path, self.line) if is_number else []
        counted = is_number and places.names_count(self.path, self.line)
        return dict(
            factor=self.factor,
            kind=self.kind,
            divides=self.divides,
            whole=self.is_whole,
            written=self.factor in numbers,
            counted=counted,
            times=_multiple(self.factor, numbers) if counted and self.kind == "float" else None,
            at=self.at,
            by=self.by,
        )

    def key(self):
        """The key that equivalent constants have in common; the factor of a tensor is no part of the key."""
        return (self.kind, self.divides, None if self.kind == "tensor" else self.factor)


class Ending:
    """A node at which the walk through a loss ends, with the gradient that arrives at the node."""

    def __init__(self, node, index, path, of, fused):
        self.node, self.index, self.path, self.of, self.fused = node, index, path, of, fused
        self.weights = self.targets = None
        self.is_there = None  # A mask of a product's elements that are not multiplied with 0; `None` for no product.
        self.times = 1  # The number of times that the loss includes the scalar of these elements.
        self.own_part = None  # The index of the only part with a gradient in a concatenation of features, or `None`.

    def join(self, path):
        """Adds another path to this node: only the constants that both paths have in common are kept."""
        common = [one for one, other in zip(self.path.constants, path.constants) if one.key() == other.key()]
        self.path = self.path.behind(constants=tuple(common[: len(common)]), is_weighted=self.path.is_weighted)

    def read(self, gradient, reads_targets=False):
        """Reads the weights of all elements from the gradient, and if `reads_targets` also their target tokens."""
        if gradient is None:
            return
        gradient = self.path.sign * gradient.detach()
        node = self.node
        if self.of == "tokens":
            dim = node._saved_dim
            dim = dim - (1 << 64) if dim >= 1 << 63 else dim
            weights = gradient.sum(dim, dtype=torch.float32)
            self.targets = padding.of(gradient, dim) if reads_targets else None
        elif self.fused and node._saved_reduction:
            content = node._saved_self
            weight = gradient.float() / (content.numel() if node._saved_reduction == 1 else 1)
            weights = weight.reshape(1).expand(content.numel()).reshape(content.shape)
        else:
            weights = gradient.float()
            factors = _factors(node)
            if factors is not None and factors.shape == weights.shape:
                self.is_there = factors != 0
        self.weights = weights

    def divide(self, constant):
        """Divides the weights by a constant, because an engine divides the gradients of its outputs."""
        self.weights = self.weights / constant.factor
        self.path = self.path.behind(constants=(constant,) + self.path.constants)

    def was_reached(self):
        """True if a gradient has arrived at the node."""
        return self.weights is not None

    def kind(self):
        """The reductions on the path in words, such as `mean of sum`; `value` without a reduction."""
        reduced = list(self.path.kinds)
        if self.fused and self.node._saved_reduction:
            reduced.append(("none", "mean", "sum")[self.node._saved_reduction])
        return " of ".join([it for it in reduced if it != "none"] or ["value"])

    def key(self):
        """The key that terms of one kind have in common; a loss may have such a term for each sample."""
        constants = tuple(it.key() for it in self.path.constants)
        return (self.of, self.node.name(), self.kind(), self.path.is_weighted, constants)


class Group:
    """All terms of one kind in a loss."""

    def __init__(self):
        self.endings = []

    def add(self, ending):
        """Adds a term to the group."""
        self.endings.append(ending)

    def fields(self, samples):
        """The fields of the term in the event `loss-weighed` of a microbatch with `samples` samples; `None` if all
        weights are 0. Elements of weight 0 are padding, and are left out."""
        first = self.endings[0]
        kept = [weights[weights != 0].double() for weights in (it.weights.reshape(-1) for it in self.endings)]
        weights = torch.cat(kept)
        if not len(weights):
            return None
        least, most, total = torch.stack([weights.min(), weights.max(), weights.sum()]).tolist()
        known = min(len(it.path.constants) for it in self.endings)
        return dict(
            of=first.of,
            name=first.fused or _BACKWARD.sub("", first.node.name()),
            kind=first.kind(),
            elements=len(weights),
            nonzero=self._nonzero(len(weights)),
            shape=list(first.weights.shape),
            terms=len(self.endings),
            times=max(it.times for it in self.endings),
            least=least,
            most=most,
            total=total,
            weighted=first.path.is_weighted,
            constants=[it.fields() for it in first.path.constants[:known]],
            runs=_runs(weights) if len(weights) <= MOST_ELEMENTS else [],
            filler=self._filler(samples),
            own_part=self._own_part(),
        )

    def _own_part(self):
        """The index of the only part with a gradient, if it is the same in all elements."""
        parts = {it.own_part for it in self.endings}
        return parts.pop() if len(parts) == 1 else None

    def _nonzero(self, elements):
        """The number of elements that the script does not multiply with 0; `None` if the script multiplies none of the
        `elements` with 0, or if the number is unknown."""
        if any(it.is_there is None for it in self.endings):
            return None
        count = sum(int(((it.weights != 0) & it.is_there).sum()) for it in self.endings)
        return count if count < elements else None

    def _filler(self, samples):
        """The facts about the target token that fills the ends of rows; `None` if no token does."""
        told = (padding.facts(it.targets, samples) for it in self.endings if it.targets is not None)
        return next((it for it in told if it is not None), None)


def _factors(node):
    """The constant tensor by which a node multiplies; `None` for a node that is no product with a constant."""
    is_product = node.name() == "MulBackward0" and sum(it is not None for it, _ in node.next_functions) == 1
    if not is_product:
        return None
    return node._saved_other if node.next_functions[0][0] is not None else node._saved_self


def _multiple(factor, numbers):
    """The integer greater than 1 by which one of `numbers` was multiplied to give `factor`; `None` without one."""
    for number in numbers:
        times = factor / number if number else 0
        if times > 1.5 and abs(times - round(times)) < 1e-9 * times:
            return round(times)
    return None


def _runs(weights):
    """The runs of equal consecutive weights, as pairs of the length and the mean; empty if there are too many runs."""
    ends = ((weights[1:] - weights[:-1]).abs() > SAME * weights[1:].abs()).nonzero().reshape(-1) + 1
    if len(ends) >= MOST_RUNS:
        return []
    lengths = torch.diff(ends.cpu(), prepend=torch.tensor([0]), append=torch.tensor([len(weights)])).tolist()
    return [[len(run), run.mean().item()] for run in weights.cpu().split(lengths)]
