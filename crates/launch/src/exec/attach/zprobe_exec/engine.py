"""Watches autograd's engine, which runs all backwards: those of torch's functions, and those of scripts that call the
engine directly, as Megatron-LM does."""

import functools


def watched(engine, accumulates, returns):
    """A copy of autograd's engine. `accumulates` is called with each backward that accumulates gradients into leaves, a
    function without arguments, and with the roots of the backward. `returns` is called with each backward that only
    returns gradients. The result of both is the result of the backward."""

    class Watched(type(engine)):
        def run_backward(self, tensors, *args, **kwargs):
            run = functools.partial(super().run_backward, tensors, *args, **kwargs)
            # The flag is the seventh parameter of the engine's function.
            if kwargs.get("accumulate_grad", args[5] if len(args) > 5 else False):
                return accumulates(run, list(tensors))
            return returns(run)

    return Watched()
