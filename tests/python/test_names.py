"""Tests of the digests of parameters, which equal replicas have in common."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import names, objects  # noqa: E402
from zprobe_exec.names import Named  # noqa: E402


def digest(tensor):
    named = Named("weight", tensor.shape, True)
    named.tensor = tensor
    return named.digest()[0]


class Digests(unittest.TestCase):
    def test_a_replica_has_the_same_wherever_it_lies(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for size in (1, 5, 127, 1000):
                buffer = torch.randn(size + 3).to(dtype)
                for start in range(3):
                    there = buffer[start : start + size]
                    self.assertEqual(digest(there), digest(there.clone()), (dtype, size, start))
                self.assertEqual(digest(buffer[:-3].repeat(2, 1).T[:, 0]), digest(buffer[:-3]))

    def test_any_bit_of_any_element_is_seen(self):
        # With seed 387 the last bit of element 30 in bf16 changes both halves of a digest by opposite amounts.
        for dtype, seed in ((torch.float32, 0), (torch.bfloat16, 387)):
            tensor = torch.randn(131, generator=torch.Generator().manual_seed(seed)).to(dtype)
            before = digest(tensor)
            for place in range(tensor.numel() * tensor.element_size()):
                for bit in range(8):
                    other = tensor.clone()
                    other.view(torch.uint8)[place] ^= 1 << bit
                    if bool(other.isfinite().all()):
                        self.assertNotEqual(before, digest(other), (dtype, place, bit))

    def test_what_is_not_finite_has_none(self):
        self.assertIsNone(digest(torch.tensor([1.0, float("inf")])))
        self.assertIsNone(digest(torch.tensor([1.0, float("nan")])))
        self.assertIsNotNone(digest(torch.tensor([3e38, 3e38])))


class Masters(unittest.TestCase):
    def test_whole_master_weights_have_the_name_of_their_parameter(self):
        model = torch.nn.Linear(4, 2)
        model.weight.main_param, model.bias.main_param = torch.zeros(8), torch.zeros(1)
        objects.look_again()
        _, found = names.find()
        self.assertEqual(found[id(model.weight.main_param)], found[id(model.weight)])
        self.assertNotIn(id(model.bias.main_param), found)


if __name__ == "__main__":
    unittest.main()
