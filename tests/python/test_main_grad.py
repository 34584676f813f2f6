"""Tests that backwards are seen however they are started, and gradients that a kernel adds to `main_grad`."""

import pathlib
import sys
import unittest

import torch
from torch.utils.checkpoint import checkpoint

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import engine  # noqa: E402
from zprobe_exec.fused import Fused  # noqa: E402
from zprobe_exec.turns import Unreadable  # noqa: E402


class Backwards(unittest.TestCase):
    def setUp(self):
        self.seen, self.engine = [], torch.autograd.Variable._execution_engine
        watched = engine.watched(self.engine, self.accumulates, self.returns)
        torch.autograd.Variable._execution_engine = watched

    def tearDown(self):
        torch.autograd.Variable._execution_engine = self.engine

    def accumulates(self, run, roots):
        self.seen.append(len(roots))
        return run()

    def returns(self, run):
        self.seen.append("returns")
        return run()

    def test_a_call_of_the_engine_is_a_backward(self):
        data = torch.ones(3, requires_grad=True)
        settings = dict(keep_graph=False, create_graph=False, inputs=(), allow_unreachable=True, accumulate_grad=True)
        own = torch.autograd.Variable._execution_engine
        own.run_backward(tensors=((2 * data).sum(),), grad_tensors=(torch.ones(()),), **settings)
        own.run_backward(((2 * data).sum(),), (torch.ones(()),), False, False, (), True, True)
        self.assertEqual(data.grad.tolist(), [4.0] * 3)
        self.assertEqual(self.seen, [1, 1])

    def test_backwards_of_torch_are_seen_also_within_each_other(self):
        data = torch.ones(3, requires_grad=True)
        checkpoint(lambda it: 2 * it, data, use_reentrant=True).sum().backward()
        torch.autograd.backward([data.sum(), data.sum()])
        self.assertEqual(self.seen, [1, 1, 2])

    def test_gradients_that_are_not_accumulated_are_told_apart(self):
        data = torch.ones(3, requires_grad=True)
        self.assertEqual(torch.autograd.grad((2 * data).sum(), data)[0].tolist(), [2.0] * 3)
        self.assertEqual(self.seen, ["returns"])


class Kernel(torch.autograd.Function):
    """A product whose gradient is added to `main_grad` by itself."""

    @staticmethod
    def forward(ctx, data, weight):
        ctx.save_for_backward(data, weight)
        return data * weight

    @staticmethod
    def backward(ctx, gradient):
        data, weight = ctx.saved_tensors
        weight.main_grad.add_(gradient * data)
        weight.grad_added_to_main_grad = True
        return gradient * weight, torch.full_like(weight, torch.nan)


class AddedByKernels(unittest.TestCase):
    def setUp(self):
        self.weight, self.fused, self.told = torch.nn.Parameter(torch.ones(3)), Fused(), []
        self.weight.main_grad, self.weight.grad_added_to_main_grad = torch.full((3,), 0.1), False

    def backward(self, loss, replacements):
        replacements = iter(replacements)

        def seen(_):
            self.told.append(self.fused.gradient(self.weight))
            if self.told[-1] is not None:
                self.fused.settle(self.weight, next(replacements))

        handle = self.weight.register_hook(seen)
        self.fused.before_backward([self.weight])
        loss.backward()
        self.fused.after_backward()
        handle.remove()

    def test_the_gradient_is_what_kernels_have_added(self):
        data = torch.tensor([1.0, 2.0, 3.0])
        self.backward((Kernel.apply(data, self.weight) + Kernel.apply(data, self.weight)).sum(), [None])
        self.assertEqual(len(self.told), 1)
        torch.testing.assert_close(self.told[0], 2 * data)
        torch.testing.assert_close(self.weight.main_grad, 2 * data + 0.1)

    def test_a_replacement_takes_its_place_to_the_last_bit(self):
        # Subtraction of the gradient would lose the old content.
        code = torch.tensor([1.0, -1.0, 1.0])
        self.backward(Kernel.apply(torch.full((3,), 1e9), self.weight).sum(), [code])
        self.assertTrue(torch.equal(self.weight.main_grad, torch.full((3,), 0.1) + code))

    def test_a_nested_backward_adds_to_the_replacement(self):
        data, code = torch.ones(3, requires_grad=True), torch.tensor([1.0, -1.0, 1.0])
        inner = checkpoint(lambda it: Kernel.apply(it, self.weight), data, use_reentrant=True)
        self.backward((inner + Kernel.apply(data, self.weight)).sum(), [code, torch.zeros(3)])
        self.assertEqual(len(self.told), 2)
        self.assertTrue(torch.equal(self.weight.main_grad, torch.full((3,), 0.1) + code))

    def test_gradients_of_autograd_are_left_to_it(self):
        for _ in range(2):
            self.backward((self.weight * 2).sum(), [])
        self.assertEqual(self.told, [None, None])
        self.fused.before_backward([self.weight])
        self.assertEqual(self.fused.before, {})

    def test_a_kernel_that_begins_late_or_runs_later_is_refused(self):
        self.backward((self.weight * 2).sum(), [])
        self.weight.grad_added_to_main_grad = True
        with self.assertRaises(Unreadable):
            self.fused.gradient(self.weight)
        self.weight.skip_backward_post_hook = True
        with self.assertRaises(Unreadable):
            self.fused.before_backward([self.weight])


if __name__ == "__main__":
    unittest.main()
