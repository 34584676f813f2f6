"""Tests of the facts about tokens that fill the ends of rows."""

import pathlib
import sys
import unittest

import torch
from torch.nn import functional

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import padding  # noqa: E402

NONE = -1


def rows_of(*lengths, width=8, token=0, left=False):
    """Rows of `width` different words. Each row has the given length, and is filled up with `token` at its end, or at
    its beginning if `left`."""
    words = torch.arange(10, 10 + len(lengths) * width).reshape(len(lengths), width)
    for row, length in zip(words, lengths):
        if left:
            row[: width - length] = token
        else:
            row[length:] = token
    return words


class Rows(unittest.TestCase):
    def test_rows_that_are_filled_up_are_told(self):
        told = padding.facts(rows_of(8, 5, 3), None)
        self.assertEqual(told, dict(token=0, seen=8, at_ends=8, rows=3, lengths=[3, 5], pairs=13, repeats=0))

    def test_padding_on_the_left_is_told_too(self):
        told = padding.facts(rows_of(5, 3, left=True), None)
        self.assertEqual((told["lengths"], told["at_ends"]), ([3, 5], 8))

    def test_a_prompt_and_a_last_column_without_targets_are_no_ends(self):
        rows = rows_of(8, 5, 3)
        rows[:, :2], rows[:, -1] = NONE, NONE
        self.assertEqual(padding.facts(rows, None)["lengths"], [2, 4])

    def test_rows_that_are_flat_are_cut_by_samples(self):
        flat = rows_of(8, 5, 3).flatten()
        self.assertEqual(padding.facts(flat, 3)["lengths"], [3, 5])
        self.assertIsNone(padding.facts(flat, None))
        self.assertIsNone(padding.facts(flat, 5))

    def test_a_single_target_has_no_ends(self):
        self.assertIsNone(padding.facts(torch.tensor(3), 1))

    def test_one_end_of_sequence_a_row_is_no_padding(self):
        self.assertIsNone(padding.facts(rows_of(7, 7, 7), None))

    def test_ignored_padding_has_no_target(self):
        rows = rows_of(8, 5, 3, token=NONE)
        self.assertIsNone(padding.facts(rows, None))

    def test_targets_are_read_from_the_gradient_of_log_probabilities(self):
        labels = rows_of(8, 5, 3, token=NONE).clamp(max=40)
        logits = torch.randn(3, 8, 41, requires_grad=True)
        logs = functional.log_softmax(logits, -1)
        logs.retain_grad()
        functional.nll_loss(logs.flatten(0, 1), labels.flatten(), ignore_index=NONE).backward()
        self.assertTrue(torch.equal(padding.of(logs.grad, 2), labels))

    def test_soft_targets_are_none(self):
        self.assertIsNone(padding.of(torch.full((2, 3), 0.5), 1))
