"""The autograd graph of a loss, and the parameters that it reaches."""


def nodes_behind(roots):
    """Every node of the autograd graphs that start at `roots`, each node once; the roots are included."""
    seen, pending = set(), list(roots)
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(next_node for next_node, _ in node.next_functions)


def walk(loss, index_of):
    """The number of AccumulateGrad nodes in the graph of `loss`, and the indices of the parameters of these nodes.

    `index_of` maps the `id` of a tensor to a parameter's index. A node whose tensor is not in `index_of` (an engine's
    own copy of a parameter) is counted, but belongs to no parameter.
    """
    nodes, reached = 0, set()
    for node in nodes_behind([loss.grad_fn]):
        variable = getattr(node, "variable", None)
        if variable is not None:
            nodes += 1
            if id(variable) in index_of:
                reached.add(index_of[id(variable)])
    return nodes, sorted(reached)
