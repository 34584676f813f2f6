"""The autograd graph of a loss, and the parameters that it reaches."""


def nodes_behind(roots):
    """Every node of the graphs behind some nodes, each once, they themselves included."""
    seen, pending = set(), list(roots)
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(next_node for next_node, _ in node.next_functions)


def walk(loss, index_of):
    """Number of AccumulateGrad nodes behind `loss`, and indices of the parameters they belong to.

    `index_of` maps the identity of a tensor to a parameter's index. A node whose tensor is not in
    it (an engine's own copy of a parameter) is counted, and belongs to none.
    """
    nodes, reached = 0, set()
    for node in nodes_behind([loss.grad_fn]):
        variable = getattr(node, "variable", None)
        if variable is not None:
            nodes += 1
            if id(variable) in index_of:
                reached.add(index_of[id(variable)])
    return nodes, sorted(reached)
