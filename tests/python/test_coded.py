"""Tests of what coded gradients show about a script: whether gradients are reduced in each microbatch."""

import pathlib
import sys
import types
import unittest

import torch

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "crates/launch/src/exec/attach"))
sys.path.append(str(ROOT / "crates/launch/src/adapters"))

from zprobe_exec.coded import Coded, Source  # noqa: E402
from zprobe_rank.codes import Code  # noqa: E402

RANKS, MICROBATCHES, FIRST, SIZE = 2, 2, 24, 80


class CodedTest(unittest.TestCase):
    def setUp(self):
        self.code = Code(2 * RANKS * MICROBATCHES, 7)

    def row(self, step, rank, microbatch):
        """The code of a microbatch, in the watched piece of the parameter."""
        column = (step * RANKS + rank) * MICROBATCHES + microbatch
        return self.code.values(column, range(FIRST, FIRST + SIZE))

    def is_reduced(self, held, microbatches=2):
        """The remark of rank 1 about the gradients `held` after the first of the backwards of step 1."""
        piece = dict(param=0, offset=FIRST, len=SIZE)
        mode, remarks = object.__new__(Coded), types.SimpleNamespace(reduced_early=None)
        fragment = types.SimpleNamespace(backward=held, pieces=[piece])
        mode.training = types.SimpleNamespace(
            rank=1, world_size=RANKS, step=1, code=0, microbatch=1, remarks=remarks,
            held=types.SimpleNamespace(all=[fragment]),
        )  # fmt: skip
        mode.columns, mode.source = MICROBATCHES, Source(self.code, {"weight": 0}, 1.0)
        mode.reduced_early = None
        for mode.training.microbatch in range(1, microbatches + 1):
            mode.see_gradients()
        return remarks.reduced_early

    def test_gradients_of_the_own_rank_are_not_reduced(self):
        self.assertIs(self.is_reduced(self.row(1, 1, 0)), False)

    def test_the_average_of_all_ranks_is_reduced(self):
        average = (self.row(1, 0, 0) + self.row(1, 1, 0)) / RANKS
        self.assertIs(self.is_reduced(average), True)
        self.assertIs(self.is_reduced(average.bfloat16()), True)

    def test_the_only_microbatch_of_a_window_is_not_reduced_early(self):
        average = (self.row(1, 0, 0) + self.row(1, 1, 0)) / RANKS
        self.assertIsNone(self.is_reduced(average, microbatches=1))

    def test_gradients_of_an_earlier_step_beside_the_own_are_not_reduced_early(self):
        old = sum(self.row(0, rank, microbatch) for rank in range(RANKS) for microbatch in range(MICROBATCHES))
        self.assertIs(self.is_reduced(self.row(1, 1, 0) + old / RANKS), False)


if __name__ == "__main__":
    unittest.main()
