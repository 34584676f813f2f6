"""Tests of the samples of real gradients: their number, and the places of an optimizer's elements."""

import pathlib
import sys
import types
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.observed import Contents, Observed  # noqa: E402

GA = 16


def observed(sizes, world_size):
    training = types.SimpleNamespace(settings=dict(seed=0, observe=3), sizes=sizes, world_size=world_size)
    return Observed(training)


class ObservedTest(unittest.TestCase):
    def test_every_partition_has_twice_as_many_recorded_elements_as_gradients(self):
        sizes = dict(small=100, large=40_000, middle=6_000)
        for world_size in (1, 2, 5, 8):
            mode, recorded, start = observed(sizes, world_size), [], 0
            for name, size in sizes.items():
                runs = mode._runs_of(name, size)
                self.assertTrue(all(0 <= first < end <= size for first, end in runs))
                recorded += [start + it for first, end in runs for it in range(first, end)]
                start += size
            self.assertEqual(len(recorded), len(set(recorded)))
            partition = -(-start // world_size)
            # The factor 4 is the number of steps: the judged step and the three steps before it.
            wanted = 2 * world_size * GA * 4
            for rank in range(world_size):
                held = sum(rank * partition <= it < (rank + 1) * partition for it in recorded)
                self.assertGreaterEqual(held, wanted, (world_size, rank))

    def test_the_padding_of_the_last_shard_is_no_part_of_the_parameter(self):
        whole = torch.randn(100)
        for rank in range(8):
            leaf = torch.empty(0)
            leaf.ds_tensor = torch.cat([whole, torch.zeros(4)])[13 * rank :][:13]
            contents = Contents({"bias": leaf}, {"bias": 100}, rank, 8)
            segments = contents.locate(leaf.ds_tensor)
            length = min(13, 100 - 13 * rank)
            self.assertEqual(sum(it["len"] for it in segments), 13)
            for segment in segments:
                if segment["param"] is not None:
                    self.assertLessEqual(segment["offset"] + segment["len"], 100)
                    self.assertEqual((segment["offset"], segment["len"]), (13 * rank, length))

    def test_a_layout_that_the_engine_tells_is_followed_where_the_content_bears_it_out(self):
        norm, weight = torch.nn.Parameter(torch.ones(20)), torch.nn.Parameter(torch.randn(100).bfloat16())
        # The partition begins with the sixth element of the norm, and ends with padding.
        master = torch.cat([norm.detach()[5:], weight.detach().float(), torch.zeros(9)])
        told = [(norm, 5, 15, 15), (weight, 0, 100, 100)]
        found = [("norm", 5, 15), ("weight", 0, 100), (None, 0, 9)]
        displaced, padded = [told[0], (weight, 1, 99, 99)], [(norm, 5, 15, 16), told[1]]
        stranger, too_long = [(torch.ones(15), 0, 15, 15), told[1]], [told[0], (weight, 0, 100, 120)]
        cases = [(told, found), (displaced, None), (padded, None), (stranger, None), (too_long, None), (None, None)]
        mode = observed(dict(norm=20, weight=100), 2)
        mode.training.names = {id(norm): "norm", id(weight): "weight"}
        for pieces, expected in cases:
            mode.training.between = types.SimpleNamespace(pieces=lambda _, pieces=pieces: pieces)
            segments = mode._laid_out(master)
            self.assertEqual(segments and [tuple(it.values()) for it in segments], expected)
