"""The weights of target tokens in a loss, read from the gradient that reaches its log-softmax.

Cross entropy, with or without label smoothing, and the Kullback-Leibler divergence are sums over rows
of log-probabilities: the gradient of such a row sums to minus the weight of its target. Of terms of the
loss that have no log-softmax, auxiliary losses and penalties, the weight of the whole is read.
"""

import torch

from zprobe_rank.graph import nodes_behind

# Nodes that only add up and scale what is behind them.
_SUMS = {
    "AddBackward0",
    "SubBackward0",
    "MulBackward0",
    "DivBackward0",
    "NegBackward0",
    "ToCopyBackward0",
    "AliasBackward0",
    "CloneBackward0",
}


# Largest difference of two weights beside each other that are the same, as a share of one.
SAME = 1e-3

# Runs of the same weight that are told of a microbatch.
MOST_RUNS = 256


class Weigher:
    """Watches the log-softmax nodes of one backward."""

    def __init__(self):
        self.rows, self.others, self.handles = [], [], []

    def watch(self, node):
        """Watches a node of the graph, if it is a log-softmax."""
        if node.name() == "LogSoftmaxBackward0":
            dim = node._saved_dim
            dim = dim - (1 << 64) if dim >= 1 << 63 else dim
            self.handles.append(node.register_prehook(lambda gradients: self._read(gradients[0], dim)))

    def watch_terms(self, tensors):
        """Watches the terms of some losses that have no target tokens, where others have."""
        terms = [term for tensor in tensors for term in _terms(tensor.grad_fn)]
        if len(terms) < 2:
            return
        plain = [it for it in terms if not any(node.name() == "LogSoftmaxBackward0" for node in nodes_behind([it]))]
        for term in plain if len(plain) < len(terms) else []:
            self.handles.append(term.register_prehook(lambda gradients: self._read_term(gradients[0])))

    def _read_term(self, gradient):
        if gradient is not None:
            self.others.append(gradient.detach().sum(dtype=torch.float32).reshape(1))

    def _read(self, gradient, dim):
        if gradient is not None:
            self.rows.append(-gradient.detach().sum(dim, dtype=torch.float32).reshape(-1))

    def take(self):
        """Number of tokens, least and largest weight, and their sum; runs of tokens that weigh the same; and
        the sum of the weights of other terms, if there are any. None if there were no tokens. Tokens of
        weight 0 are padding."""
        for handle in self.handles:
            handle.remove()
        weights = torch.cat(self.rows) if self.rows else torch.zeros(0)
        weights = weights[weights != 0].double()
        if not len(weights):
            return None
        least, most, total = torch.stack([weights.min(), weights.max(), weights.sum()]).tolist()
        weighed = dict(tokens=len(weights), least=least, most=most, total=total, runs=_runs(weights))
        if self.others:
            weighed["others"] = torch.cat(self.others).sum().item()
        return weighed


def _runs(weights):
    """Runs of weights that are the same, each with its length and the mean of it; none of too many."""
    ends = ((weights[1:] - weights[:-1]).abs() > SAME * weights[1:].abs()).nonzero().reshape(-1) + 1
    if len(ends) >= MOST_RUNS:
        return []
    lengths = torch.diff(ends.cpu(), prepend=torch.tensor([0]), append=torch.tensor([len(weights)])).tolist()
    return [[len(run), run.mean().item()] for run in weights.cpu().split(lengths)]


def _terms(root):
    """The terms of a loss: the first nodes behind it that do more than add up and scale."""
    terms, pending = [], [root]
    while pending:
        node = pending.pop()
        behind = [] if node is None else [it for it, _ in node.next_functions if it is not None]
        adds = node is not None and node.name() in ("AddBackward0", "SubBackward0")
        if behind and node.name() in _SUMS and (adds or len(behind) == 1):
            pending.extend(behind)
        elif node is not None:
            terms.append(node)
    return terms
