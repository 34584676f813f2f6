"""The synthetic models as torch modules, and their data."""

import torch
from torch import nn

from zprobe_rank import codes
from zprobe_rank.device import upload
from zprobe_rank.channel import DTYPES
from zprobe_rank.sampler import Pieces


def on_rank(parameter):
    """A parameter, or this rank's part of one that is a `DTensor`."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def inner_product(parameter, data):
    """<p, x>, one element in fp32."""
    # Summed in fp32, so that the division that follows does not round twice.
    return (on_rank(parameter).float() * data.float()).sum().reshape(1)


class Node(nn.Module):
    """Parameters and submodules of one dotted name; its logits are inner products with the data.

    `data` has a tensor for each parameter of the subtree in `named_parameters()` order, None for a
    parameter that this forward does not use. A submodule without data is not called. A node that
    `reverses` uses the last of its parameters and submodules first.
    """

    reverses = False

    def forward(self, *data):
        """Inner products <p, x> in fp32, one for each parameter that is used."""
        uses, at = [], 0
        for parameter in self.parameters(recurse=False):
            if data[at] is not None:
                uses.append((inner_product, (parameter, data[at])))
            at += 1
        for child in self.children():
            count = len(list(child.parameters()))
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                uses.append((child, part))
        if self.reverses:
            uses.reverse()
        return torch.cat([use(*arguments) for use, arguments in uses])


class CodedModel(Node):
    """The coded model: a loss linear in every parameter, so that its gradients are the data.

    Where the workload has a second use, another module shares that parameter, as an embedding and the
    output layer often do: its data come last. The stages of a pipeline each have such a parameter, and use it
    again by themselves. Forward returns the logits, fp32, one for each datum; or
    loss and logits as a tuple or a dict.
    """

    def __init__(self, params, workload, scale, values):
        super().__init__()
        self.scale, self.output = scale, workload.output
        for param in params:
            *path, name = base_name(param).split(".")
            module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, Node())
                module = module._modules[part]
            value = values(param).reshape(param["shape"])
            module.register_parameter(name, nn.Parameter(value, requires_grad=param["trainable"]))
        if workload.second_use is not None and "stages" not in self._modules:
            self.output_layer = Node()
            self.output_layer.weight = self.get_parameter(base_name(params[workload.second_use]))

    def forward(self, *data):
        logits = super().forward(*data)
        if self.output == "logits":
            return logits
        loss = logits.sum() * self.scale
        return (loss, logits) if self.output == "tuple" else dict(loss=loss, logits=logits)

    def loss(self, output):
        """The loss in the value that forward returned."""
        if self.output == "logits":
            return output.sum() * self.scale
        return output[0] if self.output == "tuple" else output["loss"]


class CodedPart:
    """Data of one loss: of the engine's forward, or None without one, and of terms beside it, by the
    parameter's name. All are fp32, of the parameter's shape, on the rank's device."""

    def __init__(self, forward, beside, managed):
        self.forward, self.beside, self.managed = forward, beside, managed


class CodedProbe:
    """The coded model with the data of one rank."""

    def __init__(self, spec, params, workload, rank, dtype, device):
        self.params, self.workload, self.rank, self.device = params, workload, rank, device
        self.world_size, self.ga = spec["world_size"], spec["gradient_accumulation_steps"]
        self.code, self.code_steps = codes.of_run(spec), codes.code_steps(spec)
        self.code_length = self.code.length
        self.signs = {}
        unit = readable_lr(spec["optimizer"]) or 1.0

        def values(param):
            return (self.code.initial(elements(param)) * unit).to(dtype)

        self.held = held(params, rank)
        here = [params[index] for index in self.held]
        self.again = []
        if workload.second_use is not None:
            twice = whole_name(params[workload.second_use])
            self.again = [index for index in self.held if whole_name(params[index]) == twice]
        self.model = CodedModel(here, workload, float(self.world_size * self.ga), values)
        self.model.to(device)
        for module in self.model.modules():
            module.reverses = workload.reversed_on_odd_ranks and rank % 2 == 1

    def parts(self, step, microbatch):
        """The parts of a microbatch, which go forward and backward one after the other."""
        known = {}

        def data(param, factor):
            if factor == 0:
                return None
            if param not in known:
                known[param] = self._data(step, microbatch, param)
            return known[param] if factor == 1 else factor * known[param]

        parts, unused = [], self.workload.unused_by_parity[self.rank % 2]
        for loss in self.workload.losses(step, microbatch):
            forward = None
            if loss.forward is not None:
                forward = [data(param, loss.forward[param]) for param in self.held]
                if unused is not None:
                    forward[unused] = None
                forward += [data(param, loss.again) for param in self.again]
            beside = [(self.params[param]["name"], data(param, factor)) for param, factor in loss.beside]
            parts.append(CodedPart(forward, beside, loss.managed))
        return parts

    def loss(self, forward, part):
        """Runs the engine's forward; returns the loss."""
        # A parameter as a user finds it outside of the engine's forward: of its whole shape.
        terms = [(self.model.get_parameter(name).float() * x).sum() * self.model.scale for name, x in part.beside]
        if part.forward is not None:
            output = forward(*part.forward)
            if part.managed:
                terms.insert(0, self.model.loss(output))
            else:
                # A parameter of the user's own, which the engine was never given.
                extra = torch.ones(1, requires_grad=True, device=self.device)
                terms.append((extra * extra).sum())
        return sum(terms[1:], terms[0])

    def _data(self, step, microbatch, param):
        """A parameter's data in a microbatch: its gradient, if the factor of its term is 1."""
        column = (step % self.code_steps * self.world_size + self.rank) * self.ga + microbatch
        settings = self.params[param]
        if param not in self.signs:
            self.signs[param] = self.code.signs(elements(settings))
        x = self.code.signed(column, elements(settings), self.signs[param]).reshape(settings["shape"])
        if self.workload.infinite == dict(step=step, microbatch=microbatch, rank=self.rank, param=param):
            x.view(-1)[0] = float("inf")
        return upload(x, self.device)


class DenseProbe:
    """Linear-GELU-Linear with random data: weights are read by least squares.

    A copy of the model that no engine knows of gives each microbatch's local gradient.
    """

    def __init__(self, spec, params, workload, rank, dtype, device):
        self.spec, self.rank, self.device = spec, rank, device
        self.ga = spec["gradient_accumulation_steps"]
        self.held = held(params, rank)
        self.code_length = codes.of_run(spec).length
        generator = torch.Generator().manual_seed(spec["seed"])
        self.model = mlp(params).to(dtype)
        self.shadow = mlp(params).to(DTYPES[spec["dtype"]])
        with torch.no_grad():
            for parameter in self.model.parameters():
                bound = parameter.shape[-1] ** -0.5
                parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
        # Drawn on the host, so that the data are the same on every device.
        self.model.to(device)
        self.shadow.to(device)

    def parts(self, step, microbatch):
        """The parts of a microbatch, which go forward and backward one after the other."""
        # `RunSpec::samples`: a sample does not depend on how the global batch is split.
        size = self.spec["micro_batch_size"]
        first = ((step * self.ga + microbatch) * self.spec["world_size"] + self.rank) * size
        samples = [self._sample(number) for number in range(first, first + size)]
        return [[upload(torch.stack(tensors), self.device) for tensors in zip(*samples)]]

    def _sample(self, number):
        """Input and target of a sample of the run."""
        seed = (self.spec["seed"] * 1_000_003 + number + 1) & (1 << 64) - 1
        generator = torch.Generator().manual_seed(seed)
        # Not read from the weight: in stage 3 a partitioned parameter loses its shape.
        width = self.model[0].in_features
        return [torch.randn(width, generator=generator) for _ in range(2)]

    def loss(self, forward, data):
        """Runs the engine's forward; returns the loss."""
        dtype = DTYPES[self.spec["dtype"]]
        inputs, targets = (x.to(dtype) for x in data)
        return mean_square(forward(inputs), targets)

    def local_gradient(self, values, data):
        """Gradient of a microbatch for parameters with these `values`, computed without any engine."""
        for parameter, value in zip(self.shadow.parameters(), values):
            parameter.data.copy_(value.reshape(parameter.shape))
        dtype = DTYPES[self.spec["dtype"]]
        inputs, targets = (x.to(dtype) for x in data)
        loss = mean_square(self.shadow(inputs), targets) / self.ga
        gradients = torch.autograd.grad(loss, list(self.shadow.parameters()))
        return Pieces(gradients)


def mlp(params):
    """Linear, GELU, Linear, with the shapes of `params`."""
    (hidden, inputs), (outputs, _) = params[0]["shape"], params[2]["shape"]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def build(spec, params, workload, rank, dtype, device):
    """The probe of a spec's model, its parameters in `dtype` on `device`, with the data of one rank."""
    return {"coded": CodedProbe, "mlp": DenseProbe}[spec["model"]](spec, params, workload, rank, dtype, device)


def held(params, rank):
    """Numbers of the parameters that a rank holds: all of them, unless model parallelism gives each rank some."""
    return [number for number, param in enumerate(params) if rank in param.get("ranks", [rank])]


def base_name(param):
    """The name of a parameter without the part of it that tensor parallelism gives a rank."""
    return param["name"].split("[")[0]


def whole_name(param):
    """The name of a parameter in a model that is not cut into stages or parts."""
    name = base_name(param)
    return name.split(".", 2)[2] if name.startswith("stages.") else name


def elements(param):
    """The elements of the flat order that a parameter takes."""
    numel = 1
    for side in param["shape"]:
        numel *= side
    return range(param["offset"], param["offset"] + numel)


def readable_lr(optimizer):
    """The learning rate of SGD, in whose units the coded model's parameters start."""
    return optimizer["lr"] if optimizer["type"] == "sgd" else None


def mean_square(output, targets):
    return ((output - targets) ** 2).mean()
