"""The tests run the plugin as users do, in a separate pytest with a real zprobe and real engines."""

import os

import pytest

pytest_plugins = ["pytester"]

PROGRAM = os.environ["ZPROBE_PROGRAM"]

#: A training loop with DDP, which is correct, or with --clear zeroes the gradients in the middle of a step.
TRAIN = """
import contextlib, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if "--early" in sys.argv:
    sys.exit(2)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for step in range(4):
    for microbatch in range(2):
        with model.no_sync() if microbatch == 0 else contextlib.nullcontext():
            (model(torch.randn(4, 64)).square().mean() / 2).backward()
        if microbatch == 0 and "--clear" in sys.argv:
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose tests find zprobe only through the variable ``ZPROBE_PROGRAM``."""
    for name in [name for name in os.environ if name.startswith("ZPROBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ZPROBE_PROGRAM", PROGRAM)
    pytester.path.joinpath("train.py").write_text(TRAIN)
    return pytester
