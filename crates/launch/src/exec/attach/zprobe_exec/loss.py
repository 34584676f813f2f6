"""The loss side: what each element of each term of a loss weighs in what goes backward.

Between the root of a backward and the elements of its terms (the cross entropy of a token, the squared error of a
number) lie sums, means, and products with constants. The walk from the root goes through these, notes the constants,
and ends where something else is computed: the gradient that comes in there is the weight of each element.
"""

import collections
import math

import torch

from zprobe_exec import arithmetic
from zprobe_exec.terms import Constant, Ending, Group

# Nodes that hand every element on as it is, or leave some out.
_PASSING = {
    "AliasBackward0", "AsStridedBackward0", "CatBackward0", "CloneBackward0", "CopyBackwards", "ExpandBackward0",
    "GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "MaskedFillBackward0", "MaskedSelectBackward0",
    "PermuteBackward0", "ReshapeAliasBackward0", "SelectBackward0", "SliceBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "StackBackward0", "TBackward0", "ToCopyBackward0", "TransposeBackward0",
    "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0", "WhereBackward0", "AddBackward0", "AddBackward1",
}  # fmt: skip

# Functions of engines that hand tensors on as they are.
_ENGINES = ("_DDPSink", "PreBackwardFunction", "PostBackwardFunction", "RegisterPostBackwardFunction")

# Nodes that pick elements of a row: behind them a row of log-probabilities is no longer whole.
_PICKING = {"GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "SelectBackward0", "MaskedSelectBackward0"}

_REDUCING = {"SumBackward0": "sum", "SumBackward1": "sum", "MeanBackward0": "mean", "MeanBackward1": "mean"}
_LIKELIHOODS = {"NllLossBackward0", "NllLoss2DBackward0"}
_FUSED = {
    "MseLossBackward0": "mse", "SmoothL1LossBackward0": "smooth l1", "HuberLossBackward0": "huber",
    "BinaryCrossEntropyBackward0": "bce", "BinaryCrossEntropyWithLogitsBackward0": "bce", "KlDivBackward0": "kl",
    "SoftMarginLossBackward0": "soft margin",
}  # fmt: skip
_REDUCTIONS = ("none", "mean", "sum")

# Paths from a root to its elements that are followed.
MOST_PATHS = 4096


class Path:
    """The way from the root of a loss to one of its nodes."""

    def __init__(self, constants=(), kinds=(), sign=1, is_weighted=False, is_whole=True, scalar=None):
        self.constants = constants  # Scalars that the loss was multiplied with, from the root on.
        self.kinds = kinds  # Reductions, from the root on.
        self.sign = sign
        self.is_weighted = is_weighted  # True behind a product with a tensor of different numbers.
        self.is_whole = is_whole  # True as long as no sum of several terms was met.
        self.scalar = scalar  # The node that makes a scalar of the elements.

    def behind(self, **changes):
        """This path, one node further."""
        fields = dict(vars(self))
        fields.update(changes)
        return Path(**fields)


class Loss:
    """The watch over the terms of the loss in one backward."""

    def __init__(self, reads_targets=False):
        self.reads_targets = reads_targets
        self.endings, self.handles, self.seeds, self.values = {}, [], [], []
        self.arrivals = collections.Counter()  # Paths from a root to each node that makes a scalar of its elements.
        self.error = None  # What zprobe failed with inside the backward.
        self.is_cut = False  # True if a loss has more paths than are followed.
        self.divisor = 1  # What an engine divides the gradients of its outputs by.

    def watch(self, tensors):
        """Watches the terms of some losses, each with a single element; other roots are none."""
        for tensor in tensors:
            if tensor.grad_fn is not None and tensor.numel() == 1:
                self.values.append(tensor.detach())
                self._on(tensor.grad_fn, lambda seeds: self.seeds.append(seeds[0]))
                self._walk(tensor.grad_fn, tensor.output_nr)

    def _walk(self, root, index):
        pending, paths = [(root, index, Path())], 0
        while pending:
            node, index, path = pending.pop()
            behind = self._behind(node, index, path)
            if behind is None:
                self._end(node, index, path if path.scalar or not _is_reduced(node) else path.behind(scalar=node))
                paths += 1
            else:
                # In the order in which the script has them.
                pending.extend(reversed([it for it in behind if it[0] is not None]))
            if paths > MOST_PATHS:
                self.is_cut = True
                return

    def _behind(self, node, index, path):
        """The nodes behind one, each with its output and path; None where the elements of a term are reached."""
        name, edges = node.name(), node.next_functions
        if path.scalar is None and _is_reduced(node):
            path = path.behind(scalar=node)
            self.arrivals[node] += 1
        several = sum(it is not None for it, _ in edges) > 1
        if name in _PASSING:
            return [(*edge, path.behind(is_whole=path.is_whole and not several)) for edge in edges]
        if name == "SubBackward0" or name == "RsubBackward1":
            signs = (1, -1) if name == "SubBackward0" else (-1, 1)
            whole = path.is_whole and not several
            return [(*edge, path.behind(sign=path.sign * sign, is_whole=whole)) for edge, sign in zip(edges, signs)]
        if name == "NegBackward0":
            return [(*edges[0], path.behind(sign=-path.sign))]
        if name in _REDUCING:
            return [(*edges[0], path.behind(kinds=path.kinds + (_REDUCING[name],)))]
        if name in _LIKELIHOODS:
            kind = _REDUCTIONS[node._saved_reduction]
            weighted = path.is_weighted or node._saved_weight is not None
            further = path.behind(sign=-path.sign, kinds=path.kinds + (kind,), is_weighted=weighted)
            return [(*edges[0], further)]
        if name in ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"):
            return None if several else self._scaled(node, path)
        if any(name.startswith(prefix) for prefix in _ENGINES):
            edge = _handed_on(node, index)
            return [(*edge, path)] if edge[0] is not None else None
        return None

    def _scaled(self, node, path):
        """The node behind a product with a constant, or a quotient by one."""
        name = node.name()
        at = 0 if node.next_functions[0][0] is not None else 1
        edge = node.next_functions[at]
        divides = name.startswith("Div")
        if divides and at == 1:
            return None
        other = getattr(node, "_saved_other" if at == 0 else "_saved_self", None)
        if other is None:
            return None
        if not isinstance(other, torch.Tensor) or other.numel() == 1:
            constant = Constant.of(other, divides, path.is_whole, arithmetic.place_of(node))
            return [(*edge, path.behind(constants=path.constants + (constant,)))]
        if divides or _is_mask(other):
            return [(*edge, path)]
        if _is_log_softmax(edge[0]):
            return [(*edge, path)]
        # The elements of the product weigh what the script says: those behind it would weigh anything.
        return None if not path.is_weighted else [(*edge, path)]

    def _end(self, node, index, path):
        known = self.endings.get((id(node), index))
        if known is not None:
            known.join(path)
            return
        ending = self.endings[id(node), index] = Ending(node, index, path, _of(node), _FUSED.get(node.name()))
        if not hasattr(node, "variable"):
            self._on(node, lambda gradients: ending.read(gradients[index], self.reads_targets))

    def _on(self, node, see):
        """Shows the gradients that come in at a node to `see`, which must not raise inside of the backward."""

        def seen(gradients):
            try:
                see(gradients)
            except Exception as error:
                self.error = error

        self.handles.append(node.register_prehook(seen))

    def see_output(self, before, behind):
        """An engine has made the gradient `behind` of the gradient `before` of one of its outputs."""
        if before is not None and behind is not before and bool(before.any()):
            before, behind = before.double().flatten(), behind.double().flatten()
            self.divisor = round(float(before @ before) / float(before @ behind))

    def again(self, known, code):
        """Microbatches all of whose terms go backward again with this one, `code`.

        `known` has the terms of earlier ones as (node, microbatch), by the identity of the node; those of this one are
        added.
        """
        seen = collections.Counter()
        for ending in self.endings.values():
            if ending.was_reached() and not hasattr(ending.node, "variable"):
                seen[known.setdefault(id(ending.node), (ending.node, code))[1]] += 1
        all_of = collections.Counter(first for _, first in known.values())
        return sorted(first for first, count in seen.items() if first != code and count == all_of[first])

    def take(self, samples=None):
        """Fields of the event: the terms of the loss of one microbatch, which has `samples` samples. Returns None where
        no root was a loss with a single element."""
        for handle in self.handles:
            handle.remove()
        if self.error is not None:
            raise self.error
        if not self.seeds or self.is_cut:
            return None
        groups = {}
        for ending in self.endings.values():
            if ending.was_reached() and self.divisor != 1:
                ending.divide(Constant(float(self.divisor), "int", True, True, (None, None, None, "deepspeed")))
            # The scalar may be there twice; a sum over a term's elements that has them twice is a loss of its own.
            ending.times = max(1, self.arrivals[ending.path.scalar])
            if ending.was_reached():
                groups.setdefault(ending.key(), Group()).add(ending)
        terms = [term for term in (group.fields(samples) for group in groups.values()) if term is not None]
        seed = sum(float(it.detach().sum()) for it in self.seeds if it is not None)
        numbers = [seed] + [term[field] for term in terms for field in ("least", "most", "total")]
        paths = [it.path for it in self.endings.values()]
        zeroed = not terms and any(it.factor == 0 and it.is_whole for path in paths for it in path.constants)
        if not (terms or zeroed) or not all(math.isfinite(it) for it in numbers):
            return None
        value = sum(float(it) for it in self.values)
        return dict(seed=seed, value=value if math.isfinite(value) else None, zeroed=zeroed, terms=terms)


def _of(node):
    """What the elements of a term are: target tokens, parameters, what a function hides, or other numbers."""
    if node.name() == "LogSoftmaxBackward0":
        return "tokens"
    behind = [it for it, _ in node.next_functions if it is not None]
    if behind and all(isinstance(getattr(it, "variable", None), torch.nn.Parameter) for it in behind):
        return "parameters"
    is_function = isinstance(node, torch.autograd.function.BackwardCFunction)
    return "hidden" if is_function and _is_scalar(node) else "elements"


def _handed_on(node, index):
    """The edge to the tensor that an engine's node hands on as its output `index`.

    torch 2.4 does not say how many outputs a node has: there each tensor that comes in counts as handed on.
    """
    edges = node.next_functions
    outputs = getattr(node, "_input_metadata", edges)
    return edges[len(edges) - len(outputs) + index]


def _is_reduced(node):
    """True for a node that makes a scalar of many elements."""
    name = node.name()
    is_reducing = name in _REDUCING or name in _LIKELIHOODS or name in _FUSED
    return is_reducing and _is_scalar(node)


def _is_scalar(node):
    """True for a node whose output has one element; false where torch does not tell, as 2.4 does not."""
    about = getattr(node, "_input_metadata", None)
    return about is not None and len(about[0].shape) == 0


def _is_mask(tensor):
    """True if a tensor has no numbers but 0 and one other."""
    nonzero = tensor.detach()[tensor != 0]
    return bool((nonzero == nonzero[:1]).all())


def _is_log_softmax(node):
    """True if rows of log-probabilities are handed on as a whole to here."""
    while node is not None and (node.name() in _PASSING - _PICKING or node.name() in ("NegBackward0", "SubBackward0")):
        behind = [it for it, _ in node.next_functions if it is not None]
        node = behind[0] if len(behind) == 1 else None
    return node is not None and node.name() == "LogSoftmaxBackward0"
