"""The losses of each microbatch, as `spec/workload.rs` sends them."""


class Workload:
    """The way in which a run uses its model.

    `second_use` and `expert` are the index of a parameter that is used twice and of an expert, or `None`.
    `unused_by_parity` has two indices: the parameter that the forward of even ranks leaves out, and that of odd ranks.
    If `reversed_on_odd_ranks`, odd ranks use the parameters in reverse order. `infinite` is a dict with the number of steps
    with an infinite gradient, and the microbatch, rank and parameter of the infinite gradients, or `None`.
    `frozen_alternating` is the index of the parameter that requires no gradient in every other step, beginning with the
    first, or `None`. If `starts_differently`, all ranks but the first start with zeros. `output` is the form of the
    forward's result: `logits`, `tuple` or a dict.
    """

    def __init__(self, sent):
        self.steps = sent["steps"]
        self.second_use, self.expert = sent["second_use"], sent["expert"]
        self.unused_by_parity = sent["unused_by_parity"]
        self.reversed_on_odd_ranks = sent["reversed_on_odd_ranks"]
        self.frozen_alternating = sent["frozen_alternating"]
        self.infinite, self.output = sent["infinite"], sent["output"]
        self.starts_differently = sent["starts_differently"]

    def losses(self, step, microbatch):
        """The `Loss` objects of a microbatch, in the order of their backwards."""
        for stretch in self.steps[step % len(self.steps)]:
            if microbatch < stretch["microbatches"]:
                return [Loss(loss) for loss in stretch["losses"]]
            microbatch -= stretch["microbatches"]
        raise IndexError("the step has fewer microbatches")

    def leaves_unused(self):
        """True if some microbatch leaves a parameter without a gradient, on some rank."""
        losses = [loss for step in self.steps for stretch in step for loss in stretch["losses"]]
        factors = [factor for loss in losses for _, factor in loss["forward"] or []]
        return 0 in factors or any(param is not None for param in self.unused_by_parity)

    def goes_backward_again(self):
        """True if some microbatch has more than one loss."""
        return any(len(stretch["losses"]) > 1 for step in self.steps for stretch in step)


class Loss:
    """A loss, made of the terms of the engine's forward and of terms outside the forward.

    `forward` has the factor of each parameter's data, 0 for a parameter that the forward does not use; `None` for a
    loss without a forward. `detached_block` is the name of a block that the forward calls and leaves out of its result, or
    `None`. `without_gradient` has the parameters that the forward uses although their factor is 0: those of the detached
    block and frozen ones. `again` is the factor of the term of the second use of a parameter in the same forward, the
    same in each stage of a pipeline; 0 without a second use. `beside` has pairs (parameter, factor) for the terms
    outside the forward. If `managed` is false, the loss reaches only a tensor that was never given to the engine.
    """

    def __init__(self, sent):
        self.forward = None
        if sent["forward"] is not None:
            self.forward = [factor for count, factor in sent["forward"] for _ in range(count)]
        self.detached_block, self.without_gradient = sent["detached_block"], set(sent["without_gradient"])
        self.again = sent["again"][0][1] if sent["again"] else 0
        self.beside, self.managed = sent["beside"], sent["managed"]
