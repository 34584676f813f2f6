"""Optimizers that step during the backward of DDP, in the form in which zprobe watches an optimizer of torch."""

import contextlib
import types

import torch


class Overlapped:
    """Optimizers of single parameters, which look to an observer like one optimizer. DDP itself calls them."""

    def __init__(self, parameters):
        self.param_groups = [dict(params=list(parameters))]

    def step(self):
        """Does nothing: the optimizers have stepped in the last backward."""

    def zero_grad(self):
        """Does nothing: DDP itself clears gradients that an optimizer in backward has consumed."""


class OptimizersInBackward(Overlapped):
    """An optimizer for each parameter, made by `_apply_optimizer_in_backward`. DDP, which must be made afterwards,
    steps with the gradients of a bucket once they are reduced."""

    def __init__(self, run):
        super().__init__(run.trainable())
        from torch.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers

        parameters = self.param_groups[0]["params"]
        _apply_optimizer_in_backward(run.optimizer_class, parameters, run.optimizer_settings)
        self.optimizers = _get_in_backward_optimizers(run.model)
        if run.device.type == "cpu":
            replace_streams()
            what, why = "the stream on which optimizers step in backward", "zprobe replaces it: CPUs have no streams"
            run.channel.emit("not-observed", what=what, why=why)

    def register_step_pre_hook(self, hook):
        """Registers a hook that is called before each step of each of the optimizers."""
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(hook)


class NoStream(contextlib.nullcontext):
    """Stands for a stream of an accelerator on a CPU, on which all work is done in order."""

    def wait_stream(self, stream):
        """Does nothing: the work of the other stream is done."""


def replace_streams():
    """Replaces streams in DDP's hook for optimizers in backward, which fails without an accelerator."""
    from torch.distributed.algorithms.ddp_comm_hooks import optimizer_overlap_hooks

    accelerator = types.SimpleNamespace(current_stream=NoStream)
    optimizer_overlap_hooks.torch = types.SimpleNamespace(**dict(vars(torch), Stream=NoStream, accelerator=accelerator))


class FusedOptimizer(Overlapped):
    """torch's functional optimizer, which a communication hook of DDP calls with each parameter and its gradient
    (`DistributedDataParallel._register_fused_optim`)."""

    def __init__(self, run, ddp):
        super().__init__(run.trainable())
        from torch.distributed.algorithms._optimizer_overlap import _as_overlapped_optim

        # The lines of `_register_fused_optim`, which does not return the optimizer.
        overlapped = _as_overlapped_optim(run.optimizer_class, None, **run.optimizer_settings)
        overlapped.register_ddp(ddp)
        state = overlapped._opt_hook_state
        self.hooks, self.functional = [], state.functional_optimizer
        state.functional_optimizer = self

    def register_step_pre_hook(self, hook):
        """Registers a hook that is called before each step with a parameter."""
        self.hooks.append(hook)

    def zero_grad(self):
        """Sets all gradients to `None`, as optimizers do."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def step_param(self, parameter, gradient):
        """Steps with a parameter, as the functional optimizer does."""
        own, parameter.grad = parameter.grad, gradient
        for hook in self.hooks:
            hook(types.SimpleNamespace(param_groups=[dict(params=[parameter])]), (), {})
        parameter.grad = own
        self.functional.step_param(parameter, gradient)
