"""Tests that blocks which run in a forward without being reached by a backward are found in each step."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.modules import Modules  # noqa: E402


class Detached(torch.nn.Module):
    def __init__(self, is_detached):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 2)
        self.is_detached = is_detached

    def forward(self, batch):
        hidden = self.body[:2](batch)
        return self.head(hidden.detach() if self.is_detached else hidden)


def unreached(is_detached, microbatches):
    """The paths of the unreached blocks in each of three steps. A step ends when the backward of the next step begins,
    and the last step ends when the optimizer has stepped."""
    model, modules = Detached(is_detached), Modules()
    names = {id(it): name for name, it in model.named_parameters()}
    reached = {name for name in names.values() if not is_detached or name.startswith("head")}
    roots, held = [model.body[:2], model], lambda it: True
    blocks = lambda: [path for path, *_ in modules.unreached(roots, names, reached, held)]
    told = []
    modules.install()
    try:
        for number in range(3 * microbatches):
            loss = model(torch.randn(5, 3)).sum()
            if number and number % microbatches == 0:
                told.append(sorted(blocks()))
            modules.see_backward()
            loss.backward()
            modules.see_backward()
        told.append(sorted(blocks()))
    finally:
        modules.release()
    return told


class Unreached(unittest.TestCase):
    def test_a_block_is_told_in_each_step_whatever_the_number_of_microbatches(self):
        for microbatches in (1, 2):
            self.assertEqual(unreached(True, microbatches), [["body.0", "body.1"]] * 3)
            self.assertEqual(unreached(False, microbatches), [[]] * 3)
