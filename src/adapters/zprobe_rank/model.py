"""The synthetic models as torch modules, and their data."""

import torch
from torch import nn

from zprobe_rank import codes
from zprobe_rank.channel import DTYPES
from zprobe_rank.sampler import Pieces

# The parameter that each shape is about: `Shape::param` in `spec/shape.rs`.
SPECIAL = {
    "unused-first": "layers.0.attn.weight",
    "bypass": "layers.0.attn.weight",
    "unused-last": "layers.0.mlp.weight",
    "penalty-backward": "layers.0.mlp.weight",
    "unused-always": "layers.0.norm.weight",
    "infinity-on-one-rank": "layers.0.norm.weight",
    "unused-alternating": "embed.weight",
    "tied": "position.weight",
    "experts": "expert.weight",
}


class Node(nn.Module):
    """Parameters and submodules of one dotted name; its logits are inner products with the data.

    `data` has a tensor for each parameter of the subtree in `named_parameters()` order, None for a
    parameter that this forward does not use. A submodule without data is not called.
    """

    def forward(self, *data):
        """Inner products <p, x> in fp32, one for each parameter that is used."""
        logits, at = [], 0
        for parameter in self.parameters(recurse=False):
            if data[at] is not None:
                # In fp32: the division that follows must not round twice.
                logits.append((parameter.float() * data[at].float()).sum().reshape(1))
            at += 1
        for child in self.children():
            count = len(list(child.parameters()))
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                logits.append(child(*part))
        return torch.cat(logits)


class CodedModel(Node):
    """The coded model: a loss linear in every parameter, so that its gradients are the data.

    Forward returns the logits; loss and logits as a tuple or a dict with those shapes.
    """

    def __init__(self, params, shapes, scale, values):
        super().__init__()
        self.scale = scale
        self.output = next((kind for kind in ("tuple", "dict") if kind + "-output" in shapes), "logits")
        for param in params:
            *path, name = param["name"].split(".")
            module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, Node())
                module = module._modules[part]
            value = values(param).reshape(param["shape"])
            module.register_parameter(name, nn.Parameter(value, requires_grad=param["trainable"]))
        if "tied" in shapes:
            # Two modules that share a parameter, as an embedding and the output layer often do.
            self.output_layer = Node()
            self.output_layer.weight = self.get_parameter(SPECIAL["tied"])

    def forward(self, *data):
        if "output_layer" in self._modules:
            return self._answer(self._tied(data))
        return self._answer(super().forward(*data))

    def _tied(self, data):
        """The gradient of a tied parameter is the sum of two parts: 2·x from one use, -x from the other."""
        child_data, at, logits = list(data), 0, []
        for name, child in self.named_children():
            if name == "output_layer":
                logits.append(child(-tied))
                continue
            count = len(list(child.parameters()))
            part, at = child_data[at : at + count], at + count
            if name == SPECIAL["tied"].split(".")[0]:
                tied = part[0]
                part = [2 * tied]
            if any(x is not None for x in part):
                logits.append(child(*part))
        return torch.cat(logits)

    def _answer(self, logits):
        if self.output == "logits":
            return logits
        loss = logits.sum() * self.scale
        return (loss, logits) if self.output == "tuple" else dict(loss=loss, logits=logits)

    def loss(self, output):
        """The loss of what forward returned."""
        if self.output == "logits":
            return output.sum() * self.scale
        return output[0] if self.output == "tuple" else output["loss"]


class Penalty:
    """Data of a term that goes backward by itself, with no forward of the engine before it."""

    def __init__(self, x):
        self.x = x


class CodedProbe:
    """The coded model with the data of one rank."""

    def __init__(self, spec, params, rank, dtype):
        self.spec, self.params, self.rank = spec, params, rank
        self.world_size, self.ga = spec["world_size"], spec["gradient_accumulation_steps"]
        self.code, self.code_steps = codes.of_run(spec), codes.code_steps(spec)
        self.code_length = self.code.length
        self.signs = {}
        self.shapes = set(spec["shapes"])
        unit = readable_lr(spec["optimizer"]) or 1.0

        def values(param):
            return (self.code.initial(elements(param)) * unit).to(dtype)

        self.model = CodedModel(params, self.shapes, float(self.world_size * self.ga), values)

    def parts(self, step, microbatch):
        """What goes forward and backward in a microbatch, one after the other."""
        data = self._data(step, microbatch)
        if "several-backwards" in self.shapes:
            return [[scaled(x, 2) for x in data], [scaled(x, -1) for x in data]]
        if "penalty-backward" in self.shapes:
            # Twice the term in the loss, and once less in the penalty.
            index = self._index(SPECIAL["penalty-backward"])
            if data[index] is not None:
                return [data[:index] + [2 * data[index]] + data[index + 1 :], Penalty(-data[index])]
        return [data]

    def loss(self, engine, data, microbatch):
        """Forward through the engine, and the loss."""
        if isinstance(data, Penalty):
            parameter = engine.parameter_beside(SPECIAL["penalty-backward"])
            return (parameter.float() * data.x).sum() * self.model.scale
        if "unmanaged" in self.shapes and microbatch == self.ga - 1:
            engine.forward(*data)
            # A parameter of the user's own, that the engine was never given.
            extra = torch.ones(1, requires_grad=True)
            return (extra * extra).sum()
        beside = None
        if "bypass" in self.shapes:
            # Twice the term in the engine's forward, and once less beside it.
            index = self._index(SPECIAL["bypass"])
            if data[index] is not None:
                parameter = engine.parameter_beside(SPECIAL["bypass"])
                beside = (parameter.float() * -data[index]).sum() * self.model.scale
                data = data[:index] + [2 * data[index]] + data[index + 1 :]
        loss = self.model.loss(engine.forward(*data))
        return loss if beside is None else loss + beside

    def _data(self, step, microbatch):
        column = (step % self.code_steps * self.world_size + self.rank) * self.ga + microbatch
        data = []
        for param in self.params:
            if not self._uses(param, step, microbatch):
                data.append(None)
                continue
            x = self._code(column, param).reshape(param["shape"])
            if self._is_infinite(param, step, microbatch):
                x.view(-1)[0] = float("inf")
            data.append(x)
        return data

    def _code(self, column, param):
        if param["name"] not in self.signs:
            self.signs[param["name"]] = self.code.signs(elements(param))
        return self.code.signed(column, elements(param), self.signs[param["name"]])

    def _uses(self, param, step, microbatch):
        unused = {
            "unused-first": microbatch == 0,
            "unused-last": microbatch == self.ga - 1,
            "unused-always": True,
            "unused-alternating": step % 2 == 1,
        }
        hit = [shape for shape in unused if shape in self.shapes and SPECIAL[shape] == param["name"]]
        return not any(unused[shape] for shape in hit)

    def _is_infinite(self, param, step, microbatch):
        shape = "infinity-on-one-rank"
        here = (step, microbatch, self.rank) == (0, 0, self.world_size - 1)
        return shape in self.shapes and here and param["name"] == SPECIAL[shape]

    def _index(self, name):
        return [param["name"] for param in self.params].index(name)


class DenseProbe:
    """Linear-GELU-Linear with random data: weights are read by least squares.

    A copy of the model that no engine knows of gives each microbatch's local gradient.
    """

    def __init__(self, spec, params, rank, dtype):
        self.spec, self.rank = spec, rank
        self.ga = spec["gradient_accumulation_steps"]
        self.code_length = codes.of_run(spec).length
        generator = torch.Generator().manual_seed(spec["seed"])
        self.model = mlp(params).to(dtype)
        self.shadow = mlp(params).to(DTYPES[spec["dtype"]])
        with torch.no_grad():
            for parameter in self.model.parameters():
                bound = parameter.shape[-1] ** -0.5
                parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)

    def parts(self, step, microbatch):
        """What goes forward and backward in a microbatch."""
        # `RunSpec::samples`: a sample does not depend on how the global batch is split.
        size = self.spec["micro_batch_size"]
        first = ((step * self.ga + microbatch) * self.spec["world_size"] + self.rank) * size
        samples = [self._sample(number) for number in range(first, first + size)]
        return [[torch.stack(tensors) for tensors in zip(*samples)]]

    def _sample(self, number):
        """Input and target of a sample of the run."""
        seed = (self.spec["seed"] * 1_000_003 + number + 1) & (1 << 64) - 1
        generator = torch.Generator().manual_seed(seed)
        # Stage 3 leaves no parameter its shape.
        width = self.model[0].in_features
        return [torch.randn(width, generator=generator) for _ in range(2)]

    def loss(self, engine, data, microbatch):
        """Forward through the engine, and the loss."""
        dtype = DTYPES[self.spec["dtype"]]
        inputs, targets = (x.to(dtype) for x in data)
        return mean_square(engine.forward(inputs), targets)

    def local_gradient(self, values, data):
        """Gradient of a microbatch for parameters with these `values`, past every engine."""
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


def build(spec, params, rank, dtype):
    """The probe of a spec's model, its parameters in `dtype`, with the data of one rank."""
    return {"coded": CodedProbe, "mlp": DenseProbe}[spec["model"]](spec, params, rank, dtype)


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


def scaled(x, factor):
    return None if x is None else factor * x
