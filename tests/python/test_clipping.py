"""Clipping by value, which is taken out of what is recorded."""

import pathlib
import sys
import types
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "src/exec/attach"))

from zprobe_exec.clipping import Clipping  # noqa: E402
from zprobe_exec.fragments import Fragment, Fragments  # noqa: E402


class ByValue(unittest.TestCase):
    def test_elements_that_were_cut_off_are_told_as_they_were(self):
        tensor = torch.nn.Parameter(torch.zeros(6))
        fragment = Fragment(tensor, [dict(param=0, offset=0, len=6)], None)
        fragment.choose(lambda segments: [(1, dict(param=0, offset=1, len=4))])
        held = Fragments()
        held.adopt([fragment], [])
        clipping = Clipping(types.SimpleNamespace(held=held))
        tensor.grad = torch.tensor([9.0, 0.5, -7.0, 1.0, 3.0, 9.0])
        begun = clipping.begin_by_value([tensor])
        torch.nn.utils.clip_grad_value_([tensor], 1.0)
        clipping.end_by_value(begun)
        tensor.grad[1] = 0.25  # What changes an element that was not cut off shows.
        self.assertEqual(clipping.take_out(tensor, fragment.pick()).tolist(), [0.25, -7.0, 1.0, 3.0])
        clipping.forget([tensor])
        self.assertEqual(clipping.take_out(tensor, fragment.pick()).tolist(), [0.25, -1.0, 1.0, 1.0])
