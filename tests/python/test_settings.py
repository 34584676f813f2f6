"""Tests of what is read from the state of an optimizer before its step."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import update  # noqa: E402


def state_of(kind, gradient):
    """The counts and the freshness of an optimizer that has stepped once with a gradient."""
    weight = torch.zeros(4, requires_grad=True)
    optimizer = kind([weight], lr=0.1)
    weight.grad = torch.full([4], gradient)
    optimizer.step()
    return update._state(optimizer)


class StateTest(unittest.TestCase):
    def test_averages_of_a_step_are_seen_in_each_optimizer(self):
        for kind in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adagrad):
            self.assertEqual(state_of(kind, 1.0), ([1.0, 1.0], False), kind.__name__)

    def test_a_counted_step_of_zeros_leaves_the_averages_empty(self):
        for kind in (torch.optim.AdamW, torch.optim.RMSprop):
            self.assertEqual(state_of(kind, 0.0), ([1.0, 1.0], True), kind.__name__)

    def test_an_optimizer_without_averages_is_not_fresh(self):
        self.assertEqual(state_of(torch.optim.SGD, 0.0), (None, False))


if __name__ == "__main__":
    unittest.main()
