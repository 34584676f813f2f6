"""The interface between a rank and the engine under test."""

import contextlib

import torch
import torch.distributed as dist

from zprobe_rank.sampler import Pieces


class BaseEngine:
    """Wraps a model in the engine under test, as a user would.

    Every adapter defines its methods in the order in which they stand here, and then its own. Tensors are on
    the device of the model, or where the engine keeps them. "The model's order" is that of `model.parameters()`, each parameter flat, one after the
    other: numel elements in all, those of frozen parameters too.
    """

    #: Packages whose versions matter, besides torch.
    packages = ()

    #: Dtype of the parameters that the model is made with, if not that of the run.
    model_dtype = None

    #: True if one call of the engine takes all microbatches of a step forward and backward.
    schedules_microbatches = False

    #: Layout of the result of `before_step`: "full" is the model's order, "partition" the optimizer's.
    before_step_layout = "full"

    def __init__(self, spec, workload, model, make_optimizer, channel):
        """`spec` is the run's specification as JSON has it, `workload` the losses of each microbatch,
        `model` the synthetic model, whose parameters are in `model_dtype` or the run's dtype.
        `make_optimizer` makes torch's own optimizer for some parameters, and events go to `channel`."""
        self.spec, self.workload, self.model = spec, workload, model
        self.make_optimizer, self.channel = make_optimizer, channel
        self.optimizer = None
        #: What can be seen between backward and the optimizer: `BaseEyes`, or None.
        self.eyes = None

    def set_up(self):
        """Hands the model to the engine, and makes the inner optimizer: `self.optimizer`."""
        raise NotImplementedError

    def describe(self):
        """Class that wraps the inner optimizer, and facts in the engine's own words: a text, and a dict
        of texts."""
        return self.eyes.describe()

    def describe_afterwards(self):
        """Facts that the engine can tell only after steps were taken, a dict of texts; they take the place
        of the first."""
        return self.eyes.describe_afterwards() if self.eyes else {}

    def observe(self):
        """Opens the eyes; not called when only the outcome is recorded."""
        if self.eyes:
            self.eyes.arm()
            self.eyes.open(self.index(), self.channel.emit)

    def gathers_for_forward(self):
        """True if the parameters that forward uses are gathered for it, so that they may differ from those that
        `parameters` gives."""
        return False

    def begin(self, step, microbatch):
        """Called at the beginning of a microbatch."""
        if self.eyes:
            self.eyes.begin(step, microbatch)

    def accumulation(self, final):
        """A context for forward and backward; `final` for the last backward of the step."""
        return contextlib.nullcontext()

    def forward(self, *data):
        """Runs the engine's forward. The coded model is given a tensor for each of its uses of a parameter,
        fp32 and of the parameter's whole shape, or None; it returns fp32."""
        raise NotImplementedError

    def backward(self, loss):
        """Runs the engine's backward; `loss` is a scalar, not yet divided by the accumulation steps."""
        raise NotImplementedError

    def run_microbatches(self, data):
        """Takes all microbatches of a step forward and backward, where the engine schedules them in place of
        `forward` and `backward`; `data` is a list by microbatch of what `forward` is given."""
        raise NotImplementedError

    def step(self, boundary):
        """Ends a microbatch; at the gradient accumulation boundary the optimizer's step."""
        raise NotImplementedError

    def parameter_beside(self, name):
        """A parameter as a user finds it outside of the engine's forward: of its whole shape."""
        return self.model.get_parameter(name)

    def parameters(self):
        """Content of every parameter in the model's order: a list of tensors, each of the whole shape and in
        the dtype that the model computes with or wider."""
        return [parameter.detach() for parameter in self.model.parameters()]

    def graph_index(self):
        """Indices of parameters by identity of the tensors that autograd accumulates into."""
        return self.index()

    def hint(self, fragment):
        """The parameter and the offset in it at which a fragment of the optimizer's should begin, and a list of
        the parameters that should follow it, as far as they are known; or None. It is checked: content too short
        to be recognised is told apart by it. An optimizer that was given the model's own parameters holds them
        whole, which needs no check: there the list is None."""
        for index, parameter in enumerate(self.model.parameters()):
            if parameter is fragment:
                return index, 0, None
        return None

    def fired(self):
        """Numbers of times that each parameter's gradient hook fired since the last call, and of gradients
        that autograd delivered to it: two lists in the model's order. None where hooks are not observed."""
        counts = self.eyes.fired() if self.eyes else None
        if counts is None:
            return None
        pairs = [counts.get(number, (0, 0)) for number, _ in enumerate(self.model.parameters())]
        return [fired for fired, _ in pairs], [arrived for _, arrived in pairs]

    def accumulated(self, microbatch):
        """The rank's own sum of gradients so far, not divided by the ranks: `Pieces` of numel elements in the
        model's order, in the dtype in which the engine adds them up. None where it cannot be seen."""
        return None

    def before_step(self):
        """The gradient as the optimizer step finds it: `Pieces`, of numel elements in the model's order, or
        of this rank's fragments in the optimizer's, in the engine's dtype. None where it cannot be seen."""
        return None

    def summed(self):
        """The sum of gradients as the eyes see it, which may be reduced: as in `accumulated`."""
        return self._pieces()

    def scaling(self):
        """Loss scale of the last step, a float, and whether it overflowed; None without a scale."""
        return None

    def gradient_norm(self):
        """Global norm of the last step's gradient as the engine computed it, and the norm to which it
        clips: two floats. None without a norm."""
        return None

    def device(self):
        """The device of the model."""
        return next(self.model.parameters()).device

    def trainable(self):
        """The parameters that require a gradient."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def index(self):
        """Numbers of the model's parameters by their identities."""
        return {id(parameter): number for number, parameter in enumerate(self.model.parameters())}

    def _pieces(self, dtype=None, finish=lambda tensor: tensor):
        """The gradients that the eyes see as `Pieces` in the model's order, with zeros in `dtype` or the parameter's
        dtype where there is none; None where the rank has no whole gradients."""
        held = self.eyes.gradients()
        if held is None:
            return None
        parameters = enumerate(self.model.parameters())
        return Pieces([or_zeros(held.get(number), it, dtype) for number, it in parameters], finish)


class LoopEngine(BaseEngine):
    """An engine that leaves division, clipping and the optimizer's step to the user's training loop, as those
    of PyTorch do. It sets `self.optimizer`."""

    norm = None

    def backward(self, loss):
        (loss / self.spec["gradient_accumulation_steps"]).backward()

    def step(self, boundary):
        if not boundary:
            return
        limit = self.spec["gradient_clipping"]
        if limit > 0:
            # A number on the device, which is read only where it is recorded.
            self.norm = whole(torch.nn.utils.clip_grad_norm_(self.trainable(), limit))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradient_norm(self):
        return None if self.norm is None else (float(self.norm), self.spec["gradient_clipping"])


def whole(tensor):
    """The whole of a tensor, gathered if it is a `DTensor`. Modules without a backward have not resharded:
    their parameters are whole already, and a norm over no gradient is a plain number."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    if tensor.device.type != "cpu" and dist.get_backend() == "gloo":
        return _on_host(tensor).full_tensor().to(tensor.device)
    return tensor.full_tensor()


#: Meshes of the host's devices, by those of the accelerators.
_host_meshes = {}


def _on_host(tensor):
    """A `DTensor` with its elements on the host: over Gloo, gathering one from GPUs ends torch 2.11.0 by a SIGSEGV."""
    mesh = tensor.device_mesh
    if mesh not in _host_meshes:
        _host_meshes[mesh] = type(mesh)("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    settings = dict(run_check=False, shape=tensor.shape, stride=tensor.stride())
    return type(tensor).from_local(tensor.to_local().cpu(), _host_meshes[mesh], tensor.placements, **settings)


def or_zeros(gradient, parameter, dtype=None):
    """A parameter's gradient; without one, zeros of its length in `dtype` or the parameter's dtype."""
    if gradient is not None:
        return gradient
    zero = torch.zeros(1, dtype=dtype or parameter.dtype, device=parameter.device)
    return zero.expand(parameter.numel())


def gradients_of(parameters):
    """Gradients one after the other, in the parameters' dtype; zeros where there is none."""
    return Pieces([or_zeros(parameter.grad, parameter) for parameter in parameters])
