"""Tests that updates of half-precision parameters which are lost to rounding are found."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.rounding import Rounding  # noqa: E402


class Channel:
    def __init__(self):
        self.events = []

    def emit(self, kind, **fields):
        self.events.append((kind, fields))


class Training:
    def __init__(self, observe=False):
        self.channel, self.step = Channel(), 0
        self.settings = {"dry": False, "observe": observe}


def share(dtype, rate, kind=torch.optim.AdamW, observe=False, initial=None):
    """The reported share of elements that a step leaves unchanged; `None` if no share is reported."""
    weight = torch.nn.Parameter(torch.full((64,), 0.02).to(dtype))
    optimizer = kind([weight], lr=rate)
    if initial is not None:
        optimizer.param_groups[0]["initial_lr"] = initial
    training = Training(observe)
    rounding = Rounding(training)
    weight.grad = torch.ones_like(weight)
    rounding.before_step(optimizer)
    optimizer.step()
    rounding.after_step(optimizer, 0)
    return training.channel.events[0][1]["share"] if training.channel.events else None


class Share(unittest.TestCase):
    def test_a_small_rate_is_swallowed_in_bf16_and_a_large_one_is_not(self):
        self.assertEqual(share(torch.bfloat16, 1e-6), 1.0)
        self.assertEqual(share(torch.bfloat16, 1e-2), 0.0)

    def test_full_precision_is_not_looked_at(self):
        self.assertIsNone(share(torch.float32, 1e-6))

    def test_a_rate_that_still_rises_says_nothing(self):
        self.assertIsNone(share(torch.bfloat16, 1e-6, initial=1e-3))
        self.assertIsNone(share(torch.bfloat16, 0.0))

    def test_codes_tell_nothing_where_the_size_of_a_gradient_matters(self):
        self.assertIsNone(share(torch.bfloat16, 1e-6, kind=torch.optim.SGD))
        self.assertEqual(share(torch.bfloat16, 1e-6, kind=torch.optim.SGD, observe=True), 1.0)

    def test_masters_in_the_state_make_good_for_it(self):
        weight = torch.nn.Parameter(torch.full((64,), 0.02).bfloat16())
        optimizer = torch.optim.AdamW([weight], lr=1e-6)
        training = Training()
        rounding = Rounding(training)
        weight.grad = torch.ones_like(weight)
        rounding.before_step(optimizer)
        optimizer.step()
        optimizer.state[weight]["p"] = weight.detach().float() + 1e-6
        rounding.after_step(optimizer, 0)
        self.assertEqual(training.channel.events, [])


if __name__ == "__main__":
    unittest.main()
