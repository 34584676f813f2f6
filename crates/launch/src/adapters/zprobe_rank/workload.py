"""The losses that go forward and backward in each microbatch, as `spec/workload.rs` sends them."""


class Workload:
    """The use that a run makes of its model.

    `second_use` and `expert` are indices of parameters or None; `unused_by_parity` are those that the forward of
    ranks with an even number and of ranks with an odd number does not use; where it is `reversed_on_odd_ranks`,
    these use the parameters in reverse order; `infinite` is a dict of step, microbatch, rank and parameter, or
    None; where it `starts_differently`, the ranks but the first start with zeros; `output` is what forward
    returns.
    """

    def __init__(self, sent):
        self.steps = sent["steps"]
        self.second_use, self.expert = sent["second_use"], sent["expert"]
        self.unused_by_parity = sent["unused_by_parity"]
        self.reversed_on_odd_ranks = sent["reversed_on_odd_ranks"]
        self.infinite, self.output = sent["infinite"], sent["output"]
        self.starts_differently = sent["starts_differently"]

    def losses(self, step, microbatch):
        """The `Loss`es that go backward in a microbatch, one after the other."""
        for stretch in self.steps[step % len(self.steps)]:
            if microbatch < stretch["microbatches"]:
                return [Loss(loss) for loss in stretch["losses"]]
            microbatch -= stretch["microbatches"]
        raise IndexError("a step has no microbatch that late")

    def goes_backward_again(self):
        """True if some microbatch has more than one loss."""
        return any(len(stretch["losses"]) > 1 for step in self.steps for stretch in step)


class Loss:
    """A loss: the terms of the engine's forward, and those beside it.

    `forward` is a list with the factor of each parameter's data, 0 for parameters that the forward does
    not use, or None where no forward precedes. `again` is the factor of the second module's term in the
    same forward, alike in each stage of a pipeline; 0 without one. `beside` is a list of (parameter, factor). A loss that is not `managed`
    reaches only a tensor that the engine was never given.
    """

    def __init__(self, sent):
        self.forward = None
        if sent["forward"] is not None:
            self.forward = [factor for count, factor in sent["forward"] for _ in range(count)]
        self.again = sent["again"][0][1] if sent["again"] else 0
        self.beside, self.managed = sent["beside"], sent["managed"]
