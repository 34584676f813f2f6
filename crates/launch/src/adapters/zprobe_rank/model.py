"""The synthetic models of zprobe as torch modules, with their training data."""

import contextlib

import torch
from torch import nn

from zprobe_rank import codes
from zprobe_rank.device import upload
from zprobe_rank.channel import DTYPES
from zprobe_rank.sampler import Pieces


def on_rank(parameter):
    """The parameter itself, or this rank's part of a parameter that is a `DTensor`."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def inner_product(parameter, data):
    """The inner product <p, x> of a parameter and its data: a tensor of one fp32 element."""
    # The sum is computed in fp32, so that the later division rounds only once.
    return (on_rank(parameter).float() * data.float()).sum().reshape(1)


class Node(nn.Module):
    """A module that holds the parameters and submodules below one dotted name. Its logits are the inner products of
    the parameters with the data.

    `data` has a tensor for each parameter of the subtree in the order of `named_parameters()`, and `None` for a
    parameter that this forward does not use. A submodule without data is not called. If `reverses` is true, the node
    uses its parameters and submodules in reverse order. The logits of the submodule named `detached` are left out.
    """

    reverses, detached = False, None
    #: A function that is called in backward, when the gradient of a parameter is computed, with the parameter's name.
    used_in_backward = None

    def complete(self):
        """To be called once the node has its parameters and submodules. An engine may hide parameters later: FSDP1
        replaces them by a flat parameter."""
        self.names = [name for name, _ in self.named_parameters(recurse=False)]
        self.counts = [len(list(child.parameters())) for child in self.children()]

    def forward(self, *data):
        """The inner products <p, x> in fp32, one for each used parameter."""
        uses, at = [], 0
        for name in self.names:
            if data[at] is not None:
                uses.append((self._product, (name, data[at])))
            at += 1
        for (name, child), count in zip(self.named_children(), self.counts):
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                uses.append((child if name != self.detached else self._call_in_vain, part))
        if self.reverses:
            uses.reverse()
        return torch.cat([use(*arguments) for use, arguments in uses])

    def _call_in_vain(self, *data):
        """No logits, after a call of the submodule named `detached`."""
        return self.get_submodule(self.detached)(*data).detach()[:0]

    def _product(self, name, data):
        product = inner_product(getattr(self, name), data)
        if self.used_in_backward is not None and product.requires_grad:
            product.register_hook(lambda _: self.used_in_backward(name))
        return product


class CodedModel(Node):
    """The coded model: its loss is linear in every parameter, so that the gradients are the data.

    If the workload has a second use of a parameter, another module shares the parameter, as an output layer often
    shares an embedding, and the data of that module come last. Each stage of a pipeline has a parameter with a second
    use, and uses the parameter again within the stage. Forward returns the fp32 logits, one for each tensor of data, or
    the loss and the logits as a tuple or a dict.
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
        """The loss, taken or computed from the value that forward returned."""
        if self.output == "logits":
            return output.sum() * self.scale
        return output[0] if self.output == "tuple" else output["loss"]


class CodedPart:
    """The data of one loss. `forward` has the data of the engine's forward, `None` without a forward; `beside` has the
    data of terms outside the forward, by the parameter's name. All data are fp32 tensors of the parameters' shapes on
    the rank's device. The block named `detached_block` runs without being part of the loss."""

    def __init__(self, forward, beside, managed, detached_block):
        self.forward, self.beside, self.managed, self.detached_block = forward, beside, managed, detached_block


class CodedProbe:
    """The coded model, and the data that one rank gives it."""

    def __init__(self, spec, params, workload, rank, dtype, device):
        self.params, self.workload, self.rank, self.device = params, workload, rank, device
        self.world_size, self.ga = spec["world_size"], spec["gradient_accumulation_steps"]
        self.code, self.code_steps = codes.of_run(spec), codes.code_steps(spec)
        self.code_length = self.code.length
        self.signs = {}
        unit = (readable_lr(spec["optimizer"]) or 1.0) * first_share_of_lr(spec)

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
            module.complete()
            module.reverses = workload.reversed_on_odd_ranks and rank % 2 == 1

    def parts(self, step, microbatch):
        """The parts of a microbatch; each part has its own forward and backward."""
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
                forward = [
                    data(param, 1 if param in loss.without_gradient else loss.forward[param]) for param in self.held
                ]
                if unused is not None:
                    forward[unused] = None
                forward += [data(param, loss.again) for param in self.again]
            beside = [(self.params[param]["name"], data(param, factor)) for param, factor in loss.beside]
            parts.append(CodedPart(forward, beside, loss.managed, loss.detached_block))
        return parts

    def loss(self, forward, part):
        """Runs the engine's forward on a part of a microbatch, and returns the loss."""
        # Outside of the engine's forward, user code sees each parameter in its whole shape.
        terms = [(self.model.get_parameter(name).float() * x).sum() * self.model.scale for name, x in part.beside]
        if part.forward is not None:
            with self._detached(part.detached_block):
                output = forward(*part.forward)
            if part.managed:
                terms.insert(0, self.model.loss(output))
            else:
                # A trainable tensor of the user that was never given to the engine.
                extra = torch.ones(1, requires_grad=True, device=self.device)
                terms.append((extra * extra).sum())
        return sum(terms[1:], terms[0])

    @contextlib.contextmanager
    def _detached(self, block):
        """A context in which the model leaves a block's logits out; `block` is the block's dotted name, or `None`."""
        if block is None:
            yield
            return
        above, _, name = block.rpartition(".")
        holder = self.model.get_submodule(above)
        holder.detached = name
        try:
            yield
        finally:
            holder.detached = None

    def _data(self, step, microbatch, param):
        """A parameter's data in a microbatch, equal to the parameter's gradient if the factor of the term is 1."""
        column = (step % self.code_steps * self.world_size + self.rank) * self.ga + microbatch
        settings = self.params[param]
        if param not in self.signs:
            self.signs[param] = self.code.signs(elements(settings))
        x = self.code.signed(column, elements(settings), self.signs[param]).reshape(settings["shape"])
        infinite = self.workload.infinite
        here = dict(microbatch=microbatch, rank=self.rank, param=param)
        if infinite is not None and step < infinite["steps"] and here.items() <= infinite.items():
            x.view(-1)[0] = float("inf")
        return upload(x, self.device)


class DenseProbe:
    """The dense model Linear-GELU-Linear with random data; the diagnosis reads contribution weights by least squares.

    A second copy of the model, `shadow`, is not given to the engine, and yields the local gradient of each microbatch.
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
        # The values are drawn on the host, so that they are the same on every device.
        self.model.to(device)
        self.shadow.to(device)

    def parts(self, step, microbatch):
        """The parts of a microbatch: one part with the inputs and the targets of all its samples."""
        # As in `RunSpec::samples`, a sample does not depend on how the global batch is split.
        size = self.spec["micro_batch_size"]
        first = ((step * self.ga + microbatch) * self.spec["world_size"] + self.rank) * size
        samples = [self._sample(number) for number in range(first, first + size)]
        return [[upload(torch.stack(tensors), self.device) for tensors in zip(*samples)]]

    def _sample(self, number):
        """The input and the target of the sample with this number in the run."""
        seed = (self.spec["seed"] * 1_000_003 + number + 1) & (1 << 64) - 1
        generator = torch.Generator().manual_seed(seed)
        # The width is not read from the weight, because a partitioned parameter of stage 3 loses its shape.
        width = self.model[0].in_features
        return [torch.randn(width, generator=generator) for _ in range(2)]

    def loss(self, forward, data):
        """Runs the engine's forward on the data of a microbatch, and returns the loss."""
        dtype = DTYPES[self.spec["dtype"]]
        inputs, targets = (x.to(dtype) for x in data)
        return mean_square(forward(inputs), targets)

    def local_gradient(self, values, data):
        """The gradient of a microbatch at the parameter `values`, computed without the engine."""
        for parameter, value in zip(self.shadow.parameters(), values):
            parameter.data.copy_(value.reshape(parameter.shape))
        dtype = DTYPES[self.spec["dtype"]]
        inputs, targets = (x.to(dtype) for x in data)
        loss = mean_square(self.shadow(inputs), targets) / self.ga
        gradients = torch.autograd.grad(loss, list(self.shadow.parameters()))
        return Pieces(gradients)


def mlp(params):
    """The modules Linear, GELU and Linear in sequence, with the shapes of `params`."""
    (hidden, inputs), (outputs, _) = params[0]["shape"], params[2]["shape"]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def build(spec, params, workload, rank, dtype, device):
    """The probe for the model that `spec` names, with parameters in `dtype` on `device` and the data of one rank."""
    return {"coded": CodedProbe, "mlp": DenseProbe}[spec["model"]](spec, params, workload, rank, dtype, device)


def held(params, rank):
    """The numbers of the parameters that a rank holds: all parameters, unless model parallelism distributes them."""
    return [number for number, param in enumerate(params) if rank in param.get("ranks", [rank])]


def base_name(param):
    """The name of a parameter without the suffix `[...]` that names a part under tensor parallelism."""
    return param["name"].split("[")[0]


def whole_name(param):
    """The name that a parameter would have if the model were not cut into stages or parts."""
    name = base_name(param)
    return name.split(".", 2)[2] if name.startswith("stages.") else name


def elements(param):
    """The range of a parameter's elements in the flat order of the model."""
    numel = 1
    for side in param["shape"]:
        numel *= side
    return range(param["offset"], param["offset"] + numel)


def readable_lr(optimizer):
    """The learning rate of SGD, which is the unit of the coded model's starting values; `None` for other optimizers."""
    return optimizer["lr"] if optimizer["type"] == "sgd" else None


def first_share_of_lr(spec):
    """The share of the learning rate that the first step has."""
    return 0.5 if "warm-up" in spec["shapes"] else 1.0


def mean_square(output, targets):
    return ((output - targets) ** 2).mean()
