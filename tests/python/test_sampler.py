"""Tests that the same elements of a large model are recorded at every point, and all elements of a small model."""

import unittest

import torch

from zprobe_rank import sampler
from zprobe_rank.sampler import Pieces, Sampler

LENGTH = 32
LARGE = (1 << 20) + 1


def segment(param, offset, length):
    return dict(param=param, offset=offset, len=length)


class Recorder:
    """A channel that keeps its events and buffers."""

    def __init__(self):
        self.layouts, self.buffers = [], []

    def emit(self, kind, **fields):
        self.layouts.append(fields)

    def buffer(self, point, layout, tensor, **fields):
        self.buffers.append((point, layout, tensor, fields))


class SamplerTest(unittest.TestCase):
    def setUp(self):
        self.channel = Recorder()
        self.sampler = Sampler(True, LENGTH, seed=7)
        self.segments = [segment(0, 0, 5), segment(1, 0, 40_000), segment(None, 0, 3), segment(2, 100, 9_000)]

    def places(self, segments):
        """The indices in the buffer of all chosen elements."""
        return [place for start, piece in self.sampler.choose(segments) for place in range(start, start + piece["len"])]

    def test_a_small_model_is_recorded_whole_and_nothing_is_announced(self):
        small = Sampler(False, LENGTH, seed=7)
        tensors = [torch.arange(4.0).reshape(2, 2), torch.arange(3.0)]
        small.announce(self.channel, "full", [segment(0, 0, 4), segment(1, 0, 3)])
        small.record(self.channel, "parameters", "full", Pieces(tensors), step=1)
        self.assertEqual(self.channel.layouts, [])
        [(point, layout, values, fields)] = self.channel.buffers
        self.assertEqual((point, layout, fields), ("parameters", "full", dict(step=1)))
        self.assertEqual(values.tolist(), [0, 1, 2, 3, 0, 1, 2])
        self.assertIsNone(small.index([segment(0, 0, 4)]))

    def test_short_pieces_are_recorded_whole_and_padding_never(self):
        self.assertEqual(self.places([segment(0, 3, 500), segment(None, 0, 9), segment(1, 0, 2)]), [*range(500), 509, 510])

    def test_long_pieces_have_their_ends_and_whole_windows_in_between(self):
        chosen = self.sampler.choose([segment(1, 10, 40_000)])
        self.assertTrue(all(piece["len"] >= LENGTH for _, piece in chosen))
        self.assertEqual(chosen[0][0], 0)
        self.assertEqual(chosen[-1][0] + chosen[-1][1]["len"], 40_000)
        self.assertGreater(len(chosen), 3)
        self.assertTrue(all(piece["offset"] == 10 + start for start, piece in chosen))
        ends = [start + piece["len"] for start, piece in chosen]
        self.assertTrue(all(end < chosen[place + 1][0] for place, end in enumerate(ends[:-1])))

    def test_the_choice_depends_on_the_piece_and_the_seed_alone(self):
        alone = [piece for _, piece in self.sampler.choose([self.segments[3]])]
        among = [piece for _, piece in self.sampler.choose(self.segments) if piece["param"] == 2]
        self.assertEqual(alone, among)
        other = [piece for _, piece in Sampler(True, LENGTH, seed=8).choose([self.segments[3]])]
        self.assertNotEqual(alone, other)

    def test_the_elements_that_are_announced_are_those_that_are_recorded(self):
        self.sampler.announce(self.channel, "full", self.segments)
        tensors = [torch.arange(start, start + s["len"]).float() for start, s in zip((0, 5, 40_005, 40_008), self.segments)]
        self.sampler.record(self.channel, "before-step", "full", Pieces(tensors), step=0)
        [(_, _, values, fields)] = self.channel.buffers
        self.assertEqual(values.tolist(), self.places(self.segments))
        self.assertEqual(len(values), sum(piece["len"] for piece in self.channel.layouts[0]["segments"]))
        self.assertTrue(self.channel.layouts[0]["sampled"])
        whole = torch.cat(tensors).double().norm().item()
        self.assertAlmostEqual(fields["norm"] / whole, 1.0, places=5)

    def test_the_parts_that_other_ranks_hold_are_cut_out_of_the_whole(self):
        cuts = sampler.ends([[segment(1, 0, 15_000)], [segment(1, 15_000, 25_000)]])
        self.sampler.announce(self.channel, "full", [segment(1, 0, 40_000)], cuts)
        announced = self.channel.layouts[0]["segments"]
        for part in (segment(1, 0, 15_000), segment(1, 15_000, 25_000)):
            for _, piece in self.sampler.choose([part]):
                self.assertIn(piece, announced)

    def test_picked_gradients_add_up(self):
        index = self.sampler.index([segment(1, 0, 40_000)])
        ones = self.sampler.pick(torch.ones(40_000), index)
        twice = ones + ones
        self.assertEqual(twice.values.tolist(), [2.0] * len(index))
        self.assertEqual(ones.nothing().values.tolist(), [0.0] * len(index))

    def test_a_norm_knows_of_elements_that_nobody_picked(self):
        tensor = torch.ones(600_000)
        self.assertAlmostEqual(sampler.norm(tensor, lambda x: x), 600_000**0.5, places=3)
        tensor[300_000] = float("nan")
        self.assertFalse(sampler.norm(tensor, lambda x: x) >= 0)
        tensor[300_000] = 1e30
        self.assertAlmostEqual(sampler.norm(tensor, lambda x: x) / 1e30, 1.0, places=5)

    def test_a_gradient_that_there_is_none_of_is_zeros(self):
        pieces = Pieces([torch.zeros(1).expand(40_000)], lambda flat: flat.float() / 2)
        self.sampler.announce(self.channel, "full", [segment(1, 0, 40_000)])
        self.sampler.record(self.channel, "accumulator", "full", pieces)
        [(_, _, values, fields)] = self.channel.buffers
        self.assertEqual((values.abs().max().item(), fields["norm"]), (0.0, 0.0))
