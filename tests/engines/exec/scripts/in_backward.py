"""An optimizer for each parameter, which steps as soon as autograd has delivered the gradient."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 61))
optimizers = {param: torch.optim.SGD([param], 1e-2) for param in model.parameters()}


def step(param):
    optimizers[param].step()
    optimizers[param].zero_grad()


for param in model.parameters():
    param.register_post_accumulate_grad_hook(step)
for _ in range(40):
    targets = torch.randint(0, 61, (8,))
    nn.functional.cross_entropy(model(torch.randn(8, 64)), targets).backward()
