"""A generator and a discriminator, whose optimizers take turns.

    python gan.py --critic 3            # three steps of the discriminator for one of the generator
    python gan.py --forget              # the discriminator keeps gradients of the generator's loss
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--critic", type=int, default=1)
parser.add_argument("--forget", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
discriminator = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
of_discriminator = torch.optim.Adam(discriminator.parameters(), 1e-3)
loss = nn.BCEWithLogitsLoss()

for number in range(40):
    real, fake = torch.randn(8, 32), generator(torch.randn(8, 16))
    if not args.forget:
        of_discriminator.zero_grad()
    loss(discriminator(real), torch.ones(8, 1)).backward()
    loss(discriminator(fake.detach()), torch.zeros(8, 1)).backward()
    of_discriminator.step()
    if number % args.critic == args.critic - 1:
        of_generator.zero_grad()
        loss(discriminator(fake), torch.ones(8, 1)).backward()
        of_generator.step()
