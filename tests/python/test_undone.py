"""Tests that updates are found which the script takes back by overwriting parameters after the step, and that parameters
are found which the script multiplies, or which the optimizer leaves as they are."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.undone import Undone  # noqa: E402


def watched(write_over):
    """Two tensors, and an `Undone` that has seen one step with them. `write_over` is called after the step with the
    tensors and their values before the step."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(5, 7)), torch.nn.Parameter(torch.randn(9))]
    before = [it.detach().clone() for it in params]
    optimizer = torch.optim.SGD(params, lr=0.1)
    for it in params:
        it.grad = torch.randn_like(it)
    seen = Undone()
    seen.before_step(optimizer)
    optimizer.step()
    seen.after_step(optimizer)
    with torch.no_grad():
        write_over(params, before)
    return params, seen


def undone(write_over):
    """The numbers of those of two tensors that have lost a part of their update."""
    params, seen = watched(write_over)
    return [next(at for at, it in enumerate(params) if it is tensor) for tensor in seen.tensors()]


class WrittenOver(unittest.TestCase):
    def test_an_update_that_stays_is_not_told(self):
        self.assertEqual(undone(lambda params, before: None), [])

    def test_averages_and_old_values_are_told(self):
        average = lambda params, before: [new.copy_(old.lerp(new, 0.1)) for new, old in zip(params, before)]
        restore = lambda params, before: [new.copy_(old) for new, old in zip(params, before)]
        self.assertEqual(undone(average), [0, 1])
        self.assertEqual(undone(restore), [0, 1])

    def test_what_is_no_part_of_the_update_is_not_told(self):
        self.assertEqual(undone(lambda params, before: [it.clamp_(-0.5, 0.5) for it in params]), [])
        self.assertEqual(undone(lambda params, before: [it.mul_(0.99) for it in params]), [])
        others = lambda params, before: [it.lerp_(torch.ones_like(it), 0.5) for it in params]
        self.assertEqual(undone(others), [])

    def test_an_update_of_one_tensor_that_is_taken_back_is_not_told(self):
        self.assertEqual(undone(lambda params, before: params[0].copy_(before[0])), [])

    def test_a_sum_over_ranks_is_a_multiple(self):
        def add(other):
            return lambda params, before: [it.add_(other(it, old)) for it, old in zip(params, before)]

        self.assertAlmostEqual(watched(add(lambda it, old: it))[1].factor(), 2.0)
        # The other rank took another update.
        self.assertAlmostEqual(watched(add(lambda it, old: 2 * old - it))[1].factor(), 2.0, delta=0.1)
        self.assertAlmostEqual(watched(add(lambda it, old: -it / 2))[1].factor(), 0.5)

    def test_other_changes_are_no_multiple(self):
        for change in [
            lambda params, before: None,
            lambda params, before: [it.mul_(0.99) for it in params],
            lambda params, before: params[0].mul_(2),
            lambda params, before: [it.add_(torch.randn_like(it)) for it in params],
        ]:
            self.assertIsNone(watched(change)[1].factor())

    def test_a_tensor_that_stays_while_others_move_is_unmoved(self):
        def unmoved(write_over):
            params, seen = watched(write_over)
            return [next(at for at, it in enumerate(params) if it is tensor) for tensor in seen.unmoved()]

        self.assertEqual(unmoved(lambda params, before: None), [])
        self.assertEqual(unmoved(lambda params, before: params[0].copy_(before[0])), [0])
        # All updates are smaller than what rounding hides, or no tensor has moved.
        hide = lambda params, before: [params[0].copy_(before[0]), params[1].copy_(before[1] * (1 + 1e-6))]
        self.assertEqual(unmoved(hide), [])
        self.assertEqual(unmoved(lambda params, before: [it.copy_(old) for it, old in zip(params, before)]), [])


if __name__ == "__main__":
    unittest.main()
