"""Measures the weight of each element of each term of a loss in the backward.

Between the root of a backward and the elements of its terms (the cross entropy of a token, the squared error of a
number) lie sums, means, and products with constants. The walk from the root passes through these nodes, records the
constants, and ends at any other node: the gradient that arrives at that node has the weight of each element.
"""

import collections
import math

import torch

from zprobe_exec import arithmetic
from zprobe_exec.terms import Constant, Ending, Group

# The nodes that pass every element on unchanged, or leave some elements out.
_PASSING = {
    "AliasBackward0", "AsStridedBackward0", "CatBackward0", "CloneBackward0", "CopyBackwards", "ExpandBackward0",
    "GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "MaskedFillBackward0", "MaskedSelectBackward0",
    "PermuteBackward0", "ReshapeAliasBackward0", "SelectBackward0", "SliceBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "StackBackward0", "TBackward0", "ToCopyBackward0", "TransposeBackward0",
    "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0", "WhereBackward0", "AddBackward0", "AddBackward1",
}  # fmt: skip

# The autograd functions of engines that pass tensors on unchanged.
ENGINE_FUNCTIONS = ("_DDPSink", "PreBackwardFunction", "PostBackwardFunction", "RegisterPostBackwardFunction")

# The nodes that pick elements of a row: after such a node a row of log-probabilities is no longer whole.
_PICKING = {"GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "SelectBackward0", "MaskedSelectBackward0"}

_REDUCING = {"SumBackward0": "sum", "SumBackward1": "sum", "MeanBackward0": "mean", "MeanBackward1": "mean"}
_LIKELIHOODS = {"NllLossBackward0", "NllLoss2DBackward0"}
_FUSED = {
    "MseLossBackward0": "mse", "SmoothL1LossBackward0": "smooth l1", "HuberLossBackward0": "huber",
    "BinaryCrossEntropyBackward0": "bce", "BinaryCrossEntropyWithLogitsBackward0": "bce", "KlDivBackward0": "kl",
    "SoftMarginLossBackward0": "soft margin",
}  # fmt: skip
_REDUCTIONS = ("none", "mean", "sum")

# The largest number of paths from a root to its elements that are followed.
MOST_PATHS = 4096

# The number of nodes after an element in which a concatenation with cached features is searched.
_NEAR = 48

# The largest number of nodes in which elements are searched on which several terms depend.
MOST_NODES = 20000


class Path:
    """The path from the root of a loss to one of the nodes of its graph."""

    def __init__(self, constants=(), kinds=(), sign=1, is_weighted=False, is_whole=True, scalar=None):
        self.constants = constants  # The scalar factors of the loss, in order from the root.
        self.kinds = kinds  # The reductions (`sum`, `mean`, `none`), in order from the root.
        self.sign = sign
        self.is_weighted = is_weighted  # True if the path has passed a product with a tensor of different numbers.
        self.is_whole = is_whole  # True if the path has passed no sum of several terms.
        self.scalar = scalar  # The node that reduces the elements to a scalar; `None` before that node.

    def behind(self, **changes):
        """A copy of this path with changed fields, for the next node."""
        fields = dict(vars(self))
        fields.update(changes)
        return Path(**fields)


class Loss:
    """Watches the terms of the loss in one backward."""

    def __init__(self, reads_targets=False):
        self.reads_targets = reads_targets
        self.endings, self.handles, self.seeds, self.values = {}, [], [], []
        self.arrivals = collections.Counter()  # By node that reduces elements to a scalar: its paths from a root.
        self.error = None  # The last error of zprobe inside of the backward; `None` without one.
        self.is_cut = False  # True if a loss has more than `MOST_PATHS` paths.
        self.divisor = 1  # The number by which an engine divides the gradients of its outputs.

    def watch(self, tensors):
        """Watches the terms of the losses among `tensors`. A loss is a tensor of a single element; other tensors are
        ignored."""
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
                # The reversal lets the walk visit the terms in the order of the script.
                pending.extend(reversed([it for it in behind if it[0] is not None]))
            if paths > MOST_PATHS:
                self.is_cut = True
                return

    def _behind(self, node, index, path):
        """The next nodes after `node`, each with the number of its output and its path; `None` if `node` yields the
        elements of a term."""
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
        if name.startswith(ENGINE_FUNCTIONS):
            edge = _handed_on(node, index)
            return [(*edge, path)] if edge[0] is not None else None
        return None

    def _scaled(self, node, path):
        """The next node after a product with a constant or a quotient by a constant; `None` if the walk ends here."""
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
        # The walk ends at the product, whose elements have the weights that the script intends; the factors after it
        # could have any weights.
        return None if not path.is_weighted else [(*edge, path)]

    def _end(self, node, index, path):
        known = self.endings.get((id(node), index))
        if known is not None:
            known.join(path)
            return
        ending = self.endings[id(node), index] = Ending(node, index, path, _of(node), _FUSED.get(node.name()))
        ending.own_part = _own_part(node)
        if not hasattr(node, "variable"):
            self._on(node, lambda gradients: ending.read(gradients[index], self.reads_targets))

    def _on(self, node, see):
        """Calls `see` with the gradients that arrive at a node. An error of `see` is kept in `error`, and does not
        reach the backward."""

        def seen(gradients):
            try:
                see(gradients)
            except Exception as error:
                self.error = error

        self.handles.append(node.register_prehook(seen))

    def see_output(self, before, behind):
        """Called after an engine has divided the gradient `before` of one of its outputs; `behind` is the result."""
        if before is not None and behind is not before and bool(before.any()):
            before, behind = before.double().flatten(), behind.double().flatten()
            self.divisor = round(float(before @ before) / float(before @ behind))

    def again(self, known, code):
        """The earlier microbatches all of whose terms have another backward in the microbatch `code`.

        `known` has the terms of earlier microbatches as (node, microbatch), by the `id` of the node. The terms of this
        microbatch are added to `known`.
        """
        seen = collections.Counter()
        for ending in self.endings.values():
            if ending.was_reached() and not hasattr(ending.node, "variable"):
                seen[known.setdefault(id(ending.node), (ending.node, code))[1]] += 1
        all_of = collections.Counter(first for _, first in known.values())
        return sorted(first for first, count in seen.items() if first != code and count == all_of[first])

    def _unmixed(self):
        """The ends of all terms, without elements on which another term depends too, as the learned weights of several
        losses and the scales of a normalising flow: the gradient that arrives there is not that of one term."""
        ends = list(self.endings.values())
        if len(ends) < 2 or all(it.of == "tokens" for it in ends):
            return ends
        depends = set(_near((behind for it in ends for behind, _ in it.node.next_functions), MOST_NODES))
        return [it for it in ends if it.of == "tokens" or it.node not in depends]

    def take(self, samples=None):
        """The fields of the event `loss-weighed`: the terms of the loss of one microbatch with `samples` samples.
        `None` if no loss of a single element could be followed."""
        for handle in self.handles:
            handle.remove()
        if self.error is not None:
            raise self.error
        if not self.seeds or self.is_cut:
            return None
        groups = {}
        for ending in self._unmixed():
            if ending.was_reached() and self.divisor != 1:
                ending.divide(Constant(float(self.divisor), "int", True, True, (None, None, None, "deepspeed")))
            # A loss may include the same scalar twice. A sum that includes the same elements twice counts as another
            # loss.
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
    """The kind of the elements of a term: `tokens` (of targets), `parameters`, `hidden` (inside of an autograd
    function), or `elements` for other numbers."""
    if node.name() == "LogSoftmaxBackward0":
        return "tokens"
    behind = [it for it, _ in node.next_functions if it is not None]
    if behind and all(isinstance(getattr(it, "variable", None), torch.nn.Parameter) for it in behind):
        return "parameters"
    is_function = isinstance(node, torch.autograd.function.BackwardCFunction)
    return "hidden" if is_function and _is_scalar(node) else "elements"


def _handed_on(node, index):
    """The edge to the tensor that an engine's node hands on as its output `index`.

    torch 2.4 does not provide the number of outputs of a node: in this release each input tensor counts as handed on.
    """
    edges = node.next_functions
    outputs = getattr(node, "_input_metadata", edges)
    return edges[len(edges) - len(outputs) + index]


def _is_reduced(node):
    """True for a node that reduces many elements to a scalar."""
    name = node.name()
    is_reducing = name in _REDUCING or name in _LIKELIHOODS or name in _FUSED
    return is_reducing and _is_scalar(node)


def _own_part(node):
    """The index of the only part with a gradient in a concatenation on which the elements of a term depend: of this
    microbatch's features among those of other microbatches, which an earlier forward has cached, or of this rank's
    features among those of other ranks. `None` if there is no such concatenation."""
    for node in _near([node], _NEAR):
        behind = [it for it, _ in node.next_functions]
        own = [index for index, it in enumerate(behind) if it is not None]
        if node.name() == "CatBackward0" and len(own) == 1 < len(behind):
            return own[0]
    return None


def _near(nodes, most):
    """Iterates over `nodes` and the nodes that follow them, the closest ones first, up to `most` nodes."""
    seen, pending = set(), collections.deque(nodes)
    while pending and len(seen) < most:
        node = pending.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(it for it, _ in node.next_functions)


def _is_scalar(node):
    """True for a node whose output is a scalar. False if torch does not provide the shape, as torch 2.4 does not."""
    about = getattr(node, "_input_metadata", None)
    return about is not None and len(about[0].shape) == 0


def _is_mask(tensor):
    """True if a tensor is a mask: all elements are 0 or a single other number."""
    nonzero = tensor.detach()[tensor != 0]
    return bool((nonzero == nonzero[:1]).all())


def _is_log_softmax(node):
    """True if `node` passes on whole rows of log-probabilities."""
    while node is not None and (node.name() in _PASSING - _PICKING or node.name() in ("NegBackward0", "SubBackward0")):
        behind = [it for it, _ in node.next_functions if it is not None]
        node = behind[0] if len(behind) == 1 else None
    return node is not None and node.name() == "LogSoftmaxBackward0"
