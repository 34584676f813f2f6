"""Trainings that are right, and unlike most: `python unusual.py KIND`."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


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


def sparse():
    embedding, head = nn.Embedding(64, 32, sparse=True), nn.Linear(32, 8)
    optimizers = [torch.optim.SparseAdam(embedding.parameters()), torch.optim.Adam(head.parameters())]
    for _ in range(6):
        words, targets = torch.randint(0, 64, (16,)), torch.randint(0, 8, (16,))
        F.cross_entropy(head(embedding(words)), targets).backward()
        for optimizer in optimizers:
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


def phases():
    """One model after the other."""
    for width in (16, 64):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2 if width == 16 else 6):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()


torch.manual_seed(0)
{function.__name__: function for function in (lbfgs, loose, sparse, unused, phases)}[sys.argv[1]]()
print("done")
