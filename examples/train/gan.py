"""A small GAN over DistributedDataParallel: a generator, a discriminator and an optimizer for each.

    torchrun --nproc-per-node 2 gan.py --accumulate 4
    python gan.py --accumulate 4            # one process, without torch.distributed

Real samples are points on an ellipse in 16 dimensions. A step first trains the discriminator on all microbatches,
then the generator on the same number of microbatches of new noise.

Weights: all microbatches have --micro-batch samples on every rank. DDP averages over the ranks, and each loss is
divided by the number of microbatches. The discriminator's loss is the mean over all real samples of the step plus the
mean over all fake ones; the generator's loss is the mean over all fake ones. Every sample has the same weight.
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import common

NOISE, FEATURES = 8, 16


class Points(Dataset):
    """Points on an ellipse, which depend only on the seed."""

    def __init__(self, count, seed):
        source = torch.Generator().manual_seed(seed)
        angles = 6.2832 * torch.rand(count, 1, generator=source)
        axes = torch.randn(2, FEATURES, generator=source)
        self.points = angles.cos() * axes[0] + angles.sin() * axes[1]

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(NOISE, width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, FEATURES)

    def forward(self, noise):
        return self.last(F.relu(self.middle(F.relu(self.first(noise)))))


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Linear(FEATURES, width)
        self.middle = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, samples):
        hidden = F.leaky_relu(self.features(samples), 0.2)
        return self.score(F.leaky_relu(self.middle(hidden), 0.2)).squeeze(-1)


def parse():
    parser = common.flags(__doc__)
    parser.set_defaults(micro_batch=8, lr=2e-3)
    return parser.parse_args()


def build(args, device):
    torch.manual_seed(args.seed)
    generator = Generator(args.width).to(device)
    discriminator = Discriminator(args.width).to(device)
    if dist.is_initialized():
        generator = DistributedDataParallel(generator)
        discriminator = DistributedDataParallel(discriminator)
    return generator, discriminator


def plain(network):
    """The network without its DDP wrapper."""
    return network.module if isinstance(network, DistributedDataParallel) else network


def quiet(network, last):
    """A context without gradient reduction, except for the last microbatch."""
    if last or not isinstance(network, DistributedDataParallel):
        return contextlib.nullcontext()
    return network.no_sync()


def judged(logits, real):
    """The mean cross entropy of the discriminator's logits over the samples of a microbatch."""
    wanted = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return F.binary_cross_entropy_with_logits(logits, wanted)


def train(args, rank, world, local_rank):
    device = common.accelerator(local_rank)
    generator, discriminator = build(args, device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    data = Points(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, drop_last=True)
    source = torch.Generator().manual_seed(1000 * args.seed + rank)
    draw = lambda: torch.randn(args.micro_batch, NOISE, generator=source).to(device)

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        totals = torch.zeros(2, device=device)

        for index, real in enumerate(window):
            with quiet(discriminator, index == len(window) - 1):
                with torch.no_grad():
                    fake = generator(draw())
                logits = discriminator(torch.cat([real.to(device), fake]))
                real_loss = judged(logits[: len(real)], real=True)
                fake_loss = judged(logits[len(real) :], real=False)
                loss = (real_loss + fake_loss) / args.accumulate
                loss.backward()
            totals[0] += loss.detach()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(discriminator.parameters(), args.clip)
        discriminator_optimizer.step()
        discriminator_optimizer.zero_grad()

        # The discriminator is only evaluated here: its parameters get no gradients.
        discriminator.requires_grad_(False)
        for index in range(args.accumulate):
            with quiet(generator, index == args.accumulate - 1):
                logits = plain(discriminator)(generator(draw()))
                loss = judged(logits, real=True) / args.accumulate
                loss.backward()
            totals[1] += loss.detach()
        discriminator.requires_grad_(True)
        if args.clip:
            torch.nn.utils.clip_grad_norm_(generator.parameters(), args.clip)
        generator_optimizer.step()
        generator_optimizer.zero_grad()

        if world > 1:
            dist.all_reduce(totals)
        if rank == 0:
            judge, forger = (totals / world).tolist()
            print(f"step {step}: discriminator {judge:.4f} generator {forger:.4f}", flush=True)

    if args.out and rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(plain(generator).state_dict(), os.path.join(args.out, "generator.pt"))
        torch.save(plain(discriminator).state_dict(), os.path.join(args.out, "discriminator.pt"))


def main():
    args = parse()
    if "RANK" not in os.environ:
        return train(args, rank=0, world=1, local_rank=0)
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(dist.get_default_backend_for_device(common.accelerator(local_rank)))
    train(args, dist.get_rank(), dist.get_world_size(), local_rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
