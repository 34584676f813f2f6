"""The autograd graph of a loss, and the parameters that it reaches."""


def walk(loss, index_of):
    """Number of AccumulateGrad nodes behind `loss`, and indices of the parameters they belong to.

    `index_of` maps the identity of a tensor to a parameter's index. A node whose tensor is not in
    it (an engine's own copy of a parameter) is counted, and belongs to none.
    """
    nodes, reached = 0, set()
    seen, pending = set(), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            nodes += 1
            if id(variable) in index_of:
                reached.add(index_of[id(variable)])
        pending.extend(next_node for next_node, _ in node.next_functions)
    return nodes, sorted(reached)
