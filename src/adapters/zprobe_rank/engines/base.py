"""What every adapter offers to the rank."""

import contextlib

import torch

from zprobe_rank.sampler import Pieces


class BaseEngine:
    """Wraps a model in the engine under test, as a user would.

    `spec` is the run's specification, `model` the synthetic model, `make_optimizer` makes torch's
    own optimizer for some parameters, and `channel` is where events go.
    """

    #: Packages whose versions matter, besides torch.
    packages = ()

    #: Dtype of the parameters that the model is made with, if not that of the run.
    model_dtype = None

    #: Layout of what `before_step` returns.
    before_step_layout = "full"

    def __init__(self, spec, model, make_optimizer, channel):
        self.spec, self.model, self.make_optimizer, self.channel = spec, model, make_optimizer, channel
        self.optimizer = None
        #: Called with the gradient right after the boundary's reduction, where that can be seen.
        self.on_reduced = None

    def set_up(self):
        """Hands the model to the engine and makes the inner optimizer."""
        raise NotImplementedError

    def describe(self):
        """Class that wraps the inner optimizer, and facts in the engine's own words."""
        raise NotImplementedError

    def describe_afterwards(self):
        """Facts that the engine can tell only once steps were taken; they take the place of the first."""
        return {}

    def observe(self):
        """Attaches what observes the engine; not called when only the outcome is asked for."""

    def begin(self, step, microbatch):
        """A microbatch begins."""

    def accumulation(self, final):
        """A context for forward and backward; `final` for the last backward of the step."""
        return contextlib.nullcontext()

    def forward(self, *data):
        """The engine's forward."""
        raise NotImplementedError

    def backward(self, loss):
        """The engine's backward."""
        raise NotImplementedError

    def step(self, boundary):
        """Ends a microbatch; at the gradient accumulation boundary the optimizer's step."""
        raise NotImplementedError

    def parameter_beside(self, name):
        """A parameter as a user finds it outside of the engine's forward."""
        return self.model.get_parameter(name)

    def parameters(self):
        """Content of every parameter, whole, in the model's order."""
        return [parameter.detach() for parameter in self.model.parameters()]

    def graph_index(self):
        """Indices of parameters by identity of the tensors that autograd accumulates into."""
        return {id(parameter): index for index, parameter in enumerate(self.model.parameters())}

    def hint(self, fragment):
        """The parameter and the offset in it at which a fragment of the optimizer's should begin, or
        None. It is checked: content too short to be recognised is told apart by it. An optimizer that
        was given the model's own parameters holds them whole."""
        for index, parameter in enumerate(self.model.parameters()):
            if parameter is fragment:
                return index, 0
        return None

    def fired(self):
        """How often each parameter's gradient hook fired since the last call, and how many gradients
        autograd delivered to it; None where hooks are not observed."""
        return None

    def accumulated(self, microbatch):
        """The rank's own sum of gradients so far, `Pieces` in the model's order, or None."""
        return None

    def before_step(self):
        """The gradient as the optimizer step finds it, `Pieces` or None: the whole in the model's order,
        or this rank's fragments in the optimizer's."""
        return None

    def scaling(self):
        """Loss scale of the last step and whether it overflowed, or None without a scale."""
        return None

    def gradient_norm(self):
        """Global norm of the last step's gradient as the engine computed it, and the norm to which it
        clips; None without a norm."""
        return None

    def trainable(self):
        """The parameters that require a gradient."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def or_zeros(gradient, parameter, dtype=None):
    """A parameter's gradient, or zeros if it has none."""
    if gradient is not None:
        return gradient
    return torch.zeros(1, dtype=dtype or parameter.dtype).expand(parameter.numel())


def gradients_of(parameters):
    """Gradients one after the other; zeros where there is none."""
    return Pieces([or_zeros(parameter.grad, parameter) for parameter in parameters])
