"""The weights of target tokens in a loss, read from the gradient that reaches its log-softmax.

Cross entropy, with or without label smoothing, and the Kullback-Leibler divergence are sums over rows
of log-probabilities: the gradient of such a row sums to minus the weight of its target.
"""

import torch


class Weigher:
    """Watches the log-softmax nodes of one backward."""

    def __init__(self):
        self.rows, self.handles = [], []

    def watch(self, node):
        """Watches a node of the graph, if it is a log-softmax."""
        if node.name() == "LogSoftmaxBackward0":
            dim = node._saved_dim
            dim = dim - (1 << 64) if dim >= 1 << 63 else dim
            self.handles.append(node.register_prehook(lambda gradients: self._read(gradients[0], dim)))

    def _read(self, gradient, dim):
        if gradient is not None:
            self.rows.append(-gradient.detach().sum(dim, dtype=torch.float32).reshape(-1))

    def take(self):
        """Number of tokens, least and largest weight, and their sum; None if there were none. Tokens of
        weight 0 are padding."""
        for handle in self.handles:
            handle.remove()
        weights = torch.cat(self.rows) if self.rows else torch.zeros(0)
        weights = weights[weights != 0].double()
        if not len(weights):
            return None
        least, most, total = torch.stack([weights.min(), weights.max(), weights.sum()]).tolist()
        return dict(tokens=len(weights), least=least, most=most, total=total)
