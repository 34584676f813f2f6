"""Trainings unlike most, all of them right but those that are cleared: `python unusual.py KIND`."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def lbfgs():
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    data = torch.randn(64, 8)

    def loss():
        optimizer.zero_grad()
        value = F.mse_loss(model(data), data.sum(1, keepdim=True))
        value.backward()
        return value

    for _ in range(6):
        optimizer.step(loss)


def loose():
    """Parameters of no module: one without dimensions, and a complex one."""
    scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    turn = nn.Parameter(torch.randn(16, 16, dtype=torch.cfloat))
    model = nn.Linear(16, 64).double()
    optimizer = torch.optim.Adam([scale, turn, *model.parameters()], 1e-3)
    for _ in range(6):
        optimizer.zero_grad()
        hidden = (torch.fft.fft(torch.randn(32, 16)) @ turn).abs().double()
        (model(hidden) * scale).pow(2).mean().backward()
        optimizer.step()


def few():
    """Elements that are fewer than a code, with gradients that are averaged before the step."""
    weight = nn.Parameter(torch.randn(12))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(6):
        for _ in range(4):
            (weight * torch.randn(12)).sum().backward()
        weight.grad /= 4
        optimizer.step()
        optimizer.zero_grad()


def scaled():
    """A fused optimizer, which takes the loss scale out within its step and skips steps with infinities by itself."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(6):
        for _ in range(2):
            data, targets = batch()
            loss = F.cross_entropy(model(data), targets) / 2
            if step in (0, 2):
                loss.register_hook(lambda gradient: gradient * float("inf"))
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def sparse():
    embedding, head = nn.Embedding(64, 32, sparse=True), nn.Linear(32, 8)
    optimizers = [torch.optim.SparseAdam(embedding.parameters()), torch.optim.Adam(head.parameters())]
    for _ in range(6):
        words, targets = torch.randint(0, 64, (16,)), torch.randint(0, 8, (16,))
        F.cross_entropy(head(embedding(words)), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def shared():
    """A parameter that is used inside of a reentrant checkpoint and outside of it."""
    layer = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(6):
        checkpoint(layer, layer(torch.randn(8, 32)), use_reentrant=True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def unused():
    """An optimizer that also holds what no loss depends on."""
    model, other = nn.Linear(32, 32), nn.Linear(32, 32)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])
    for _ in range(6):
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Encoder(nn.Module):
    """Averages states, and computes another output that nothing uses."""

    def __init__(self):
        super().__init__()
        self.body, self.pooler = nn.Linear(16, 32), nn.Linear(32, 32)

    def forward(self, data):
        states = self.body(data).tanh()
        return states.mean(1), self.pooler(states[:, 0]).tanh()


def cached():
    """Each of three microbatches has the loss of all of them, and a gradient only for its own features (GradCache)."""
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        parts = [torch.randn(8, 4, 16) for _ in range(3)]
        with torch.no_grad():
            features = [model(part)[0] for part in parts]
        for index, part in enumerate(parts):
            own = model(part)[0]
            rows = torch.cat([*features[:index], own, *features[index + 1 :]])
            F.cross_entropy(rows @ rows.T, torch.arange(len(rows)).flip(0)).backward()
        optimizer.step()
        optimizer.zero_grad()


def cached_gradients():
    """GradCache with two backwards through the model: the gradients of the features come from a backward before."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        parts = [torch.randn(8, 16) for _ in range(2)]
        with torch.no_grad():
            features = [model(part) for part in parts]
        for it in features:
            it.requires_grad_()
        rows = torch.cat(features)
        F.cross_entropy(rows @ rows.T, torch.arange(len(rows)).flip(0)).backward()
        for part, it in zip(parts, features):
            model(part).backward(it.grad)
        optimizer.step()
        optimizer.zero_grad()


def phases():
    """One model after the other."""
    for width in (16, 64):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2 if width == 16 else 6):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()


def classifier():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def batch():
    return torch.randn(32, 16), torch.randint(0, 4, (32,))


def sharpness():
    """Sharpness-aware minimisation: the first backward of a step only says where to look."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        data, targets = batch()
        F.cross_entropy(model(data), targets).backward()
        with torch.no_grad():
            offsets = [0.05 * parameter.grad / parameter.grad.norm() for parameter in model.parameters()]
            for parameter, offset in zip(model.parameters(), offsets):
                parameter.add_(offset)
        optimizer.zero_grad()
        F.cross_entropy(model(data), targets).backward()
        with torch.no_grad():
            for parameter, offset in zip(model.parameters(), offsets):
                parameter.sub_(offset)
        optimizer.step()
        optimizer.zero_grad()


def adversarial(attacks=1):
    """The first backward of a step is there for the gradient of its input."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        data, targets = batch()
        for _ in range(attacks):
            data = data.detach().requires_grad_()
            F.cross_entropy(model(data), targets).backward()
            data = data + 0.1 * data.grad.sign()
            optimizer.zero_grad(set_to_none=attacks > 1)
        F.cross_entropy(model(data.detach()), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def attacked():
    """The same, with several backwards for the input."""
    adversarial(attacks=2)


def skipped():
    """Every third window is given up, as one with a spike."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    for window in range(14):
        optimizer.zero_grad()
        for _ in range(2):
            data, targets = batch()
            (F.cross_entropy(model(data), targets) / 2).backward()
        if window % 3 != 1:
            optimizer.step()


def cleared():
    """No training that is right: the gradient of every first microbatch is lost."""
    clear(lambda model, data: model(data))


def cleared_under_a_checkpoint():
    """The same, with backwards within backwards."""
    clear(lambda model, data: checkpoint(model[1:], model[0](data), use_reentrant=True))


def cleared_under_normalised_weights():
    """The same, with weights that every forward normalises again."""

    def forward(model, data):
        with torch.no_grad():
            for layer in model[0], model[2]:
                layer.weight.copy_(F.normalize(layer.weight, dim=1))
        return model(data)

    clear(forward)


def clear(forward):
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    for microbatch in range(12):
        data, targets = batch()
        optimizer.zero_grad()
        (F.cross_entropy(forward(model, data), targets) / 2).backward()
        if microbatch % 2:
            optimizer.step()


def cleared_as_a_habit():
    """No training that is right: it steps with the first microbatch of four, and loses the others."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    for microbatch in range(24):
        data, targets = batch()
        optimizer.zero_grad()
        (F.cross_entropy(model(data), targets) / 4).backward()
        if microbatch % 4 == 0:
            optimizer.step()


def two_in_one():
    """An optimizer that has another one step for some of its parameters, as MuonWithAuxAdam does."""
    model = classifier()
    matrices = [it for it in model.parameters() if it.dim() > 1]
    vectors = [it for it in model.parameters() if it.dim() == 1]

    class Both(torch.optim.SGD):
        inner = torch.optim.Adam(vectors, 1e-3)

        def step(self, closure=None):
            self.inner.step()
            super().step(closure)

    optimizer = Both(matrices, 0.1)
    for _ in range(6):
        for _ in range(2):
            data, labels = batch()
            (F.cross_entropy(model(data), labels) / 2).backward()
        optimizer.step()
        model.zero_grad()


def orthogonalised(in_each=False):
    """Gradients of matrices that are orthogonalised before the optimizer consumes them: once a step, or in each
    microbatch."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    from deepspeed.runtime.zero.muon import original_muon

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    matrices = [it for it in model.parameters() if it.dim() > 1]
    momenta = [torch.zeros_like(it) for it in matrices]

    def orthogonalise():
        for matrix, momentum in zip(matrices, momenta):
            matrix.grad.copy_(original_muon.muon_update(matrix.grad.clone(), momentum))

    for _ in range(6):
        sums = [torch.zeros_like(it) for it in model.parameters()]
        for _ in range(3):
            data, labels = batch()
            (F.cross_entropy(model(data), labels) / 3).backward()
            if in_each:
                orthogonalise()
                sums = [known + it.grad for known, it in zip(sums, model.parameters())]
                model.zero_grad(set_to_none=False)
        if in_each:
            for known, it in zip(sums, model.parameters()):
                it.grad = known
        else:
            orthogonalise()
        optimizer.step()
        model.zero_grad()


def orthogonalised_in_each():
    orthogonalised(in_each=True)


def compiled_backward():
    """A backward that autograd hands over to a compiler."""
    from torch._dynamo import compiled_autograd

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        data, targets = batch()
        loss = F.cross_entropy(model(data), targets)
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Fused(torch.autograd.Function):
    """A linear layer that adds up the gradient of its weight by itself, as Megatron-LM's."""

    @staticmethod
    def forward(ctx, data, weight):
        ctx.save_for_backward(data, weight)
        return data @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        data, weight = ctx.saved_tensors
        weight.main_grad.add_(gradient.T @ data)
        weight.grad_added_to_main_grad = True
        return gradient @ weight, torch.zeros_like(weight)


def fused_gradients(clears=True):
    weight = nn.Parameter(torch.randn(4, 16))
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(4, 16), False
    optimizer = torch.optim.AdamW([weight])
    for _ in range(6):
        for _ in range(3):
            data, targets = batch()
            hidden = Fused.apply(data, weight)
            (F.cross_entropy(hidden + Fused.apply(data.flip(0), weight), targets) / 3).backward()
        weight.grad = weight.main_grad.clone()
        optimizer.step()
        weight.grad, weight.grad_added_to_main_grad = None, False
        if clears:
            weight.main_grad.zero_()


def fused_gradients_that_are_never_cleared():
    fused_gradients(clears=False)


torch.manual_seed(0)
globals()[sys.argv[1]]()
print("done")
