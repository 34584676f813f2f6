"""Tests of the remarks about a script: which of its own reductions are signs of local SGD."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.remarks import Remarks  # noqa: E402


class ReductionTest(unittest.TestCase):
    def averages(self, reduced):
        params = [torch.nn.Parameter(torch.randn(3, 2)) for _ in range(2)]
        for it in params:
            it.grad = torch.randn(3, 2)
        remarks = Remarks()
        remarks.see_reduction(reduced(params), params)
        return remarks.averages

    def test_a_reduced_parameter_is_a_sign(self):
        self.assertTrue(self.averages(lambda params: params[1].data))

    def test_a_reduced_gradient_or_its_copy_is_none(self):
        self.assertFalse(self.averages(lambda params: params[1].grad))
        self.assertFalse(self.averages(lambda params: params[1].grad.clone()))

    def test_a_tensor_of_another_shape_is_none(self):
        self.assertFalse(self.averages(lambda params: torch.ones(5)))


if __name__ == "__main__":
    unittest.main()
