"""A training in which something goes wrong on a rank.

    broken.py WHAT RANK WHEN

WHEN is `before` the first backward, or a step and a microbatch: `1.0`.
"""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional

WHAT, RANK, WHEN = sys.argv[1:]


def load(rank):
    """Fails on the chosen rank."""
    if RANK not in (str(rank), "all"):
        return
    if WHAT == "raise":
        raise ValueError("no such sample")
    if WHAT == "catch":
        try:
            raise ValueError("no such sample")
        except ValueError:
            return
    if WHAT in ("exit", "end"):
        sys.exit(7 if WHAT == "exit" else 0)
    if WHAT == "leave":
        os._exit(5)
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[WHAT])
    if WHAT == "fault":
        ctypes.string_at(0)
    if WHAT == "sleep":
        while True:
            time.sleep(60)
    if WHAT == "wait":
        dist.barrier(group=APART)


def average(model):
    """Averages gradients over the ranks."""
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def main():
    """Trains for a few steps."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    if WHEN == "before":
        load(rank)
    for step in range(5):
        for microbatch in range(2):
            if WHEN == "%d.%d" % (step, microbatch):
                load(rank)
            loss = functional.cross_entropy(model(torch.randn(4, 64)), torch.randint(8, (4,)))
            (loss / 2).backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
APART = dist.new_group()
main()
