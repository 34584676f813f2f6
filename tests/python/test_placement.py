"""Tests that the place of fragments is found by their content, however an engine cuts and orders parameters."""

import unittest

import torch

from zprobe_rank.codes import Code
from zprobe_rank.placement import CHUNK, Placement

SIZES = [66, 268, 99, 64, 130, 5, 7]


def parameters():
    """The starting values of the coded model's parameters, by index in the flat order."""
    code, start, tensors = Code(18, 0), 0, {}
    for index, size in enumerate(SIZES):
        tensors[index] = code.initial(range(start, start + size)) / 1024
        start += size
    return tensors


def pieces(segments):
    return [(s["param"], s["offset"], s["len"]) for s in segments]


def cut_out(start, end):
    """The parts (param, offset, len) of the flat order between the elements `start` and `end`."""
    parts, at = [], 0
    for index, size in enumerate(SIZES):
        first, last = max(start, at), min(end, at + size)
        if first < last:
            parts.append((index, first - at, last - first))
        at += size
    return parts


class PlacementTest(unittest.TestCase):
    def setUp(self):
        self.tensors = parameters()
        self.placement = Placement(self.tensors, rank=0, world_size=1)

    def locate(self, *parts):
        """The located segments of a fragment that is made of parts (param, offset, len); a `param` of `None` makes
        padding."""
        content = [
            torch.zeros(size) if index is None else self.tensors[index][offset : offset + size]
            for index, offset, size in parts
        ]
        return pieces(self.placement.locate(torch.cat(content)))

    def test_a_parameter_of_its_own_is_found_whole(self):
        for index, size in enumerate(SIZES):
            self.assertEqual(self.locate((index, 0, size)), [(index, 0, size)])

    def test_the_flat_order_is_found_with_its_padding(self):
        parts = [(index, 0, size) for index, size in enumerate(SIZES)] + [(None, 0, 3)]
        self.assertEqual(self.locate(*parts), parts)

    def test_padding_ends_where_a_parameter_begins_however_long_it_is(self):
        for size in (CHUNK - 66, CHUNK, 2 * CHUNK + 3):
            parts = [(0, 0, 66), (None, 0, size), (1, 0, 268)]
            self.assertEqual(self.locate(*parts), parts)

    def test_another_order_is_found_too(self):
        parts = [(index, 0, SIZES[index]) for index in (4, 6, 0, 5, 2)]
        self.assertEqual(self.locate(*parts), parts)

    def test_a_short_end_is_found_before_a_parameter_of_another_order(self):
        for length in range(4, 16):
            for index, following in ((1, 4), (4, 0), (2, 1)):
                end = (index, SIZES[index] - length, length)
                parts = [end, (following, 0, SIZES[following]), (3, 0, 5)]
                self.assertEqual(self.locate(*parts), parts, length)

    def test_a_partition_may_begin_and_end_inside_of_parameters(self):
        for cut in range(1, SIZES[1]):
            first, second = [(0, 0, 66), (1, 0, cut)], [(1, cut, SIZES[1] - cut), (2, 0, 99)]
            self.assertEqual(self.locate(*first), first)
            self.assertEqual(self.locate(*second), second)

    def test_a_partition_of_many_ranks_may_begin_and_end_anywhere(self):
        total = sum(SIZES)
        for world_size in (5, 6, 8):
            size = -(-total // world_size)
            for rank in range(world_size):
                self.placement = Placement(self.tensors, rank, world_size)
                for start in range(rank * size % 7, total - 3, 7):
                    parts = cut_out(start, min(start + size, total))
                    self.assertEqual(self.locate(*parts), parts, (world_size, rank, start))

    def test_a_short_parameter_of_its_own_is_no_chain_of_shards(self):
        for world_size in (5, 6, 8):
            for rank in range(world_size):
                self.placement = Placement(self.tensors, rank, world_size)
                for index, size in enumerate(SIZES):
                    self.assertEqual(self.locate((index, 0, size)), [(index, 0, size)])

    def test_short_shards_are_found_by_their_neighbours(self):
        for world_size in (2, 3, 4):
            for rank in range(world_size):
                self.placement = Placement(self.tensors, rank, world_size)
                parts = []
                for index, size in enumerate(SIZES):
                    shard = -(-size // world_size)
                    held = min(shard, max(0, size - rank * shard))
                    parts += [(index, rank * shard, held)] if held else []
                    if held < shard and parts[-1][0] is None:
                        shard, held = shard + parts.pop()[2], held
                    parts += [(None, 0, shard - held)] if held < shard else []
                self.assertEqual(self.locate(*parts), parts)

    def test_shards_of_long_parameters_are_found(self):
        for world_size in (2, 3, 4):
            for index in (0, 1, 2, 4):
                size = -(-SIZES[index] // world_size)
                for start in range(0, SIZES[index], size):
                    part = (index, start, min(size, SIZES[index] - start))
                    self.assertEqual(self.locate(part), [part])

    def test_a_hint_is_followed_where_the_content_bears_it_out(self):
        short = self.tensors[5][2:4]
        self.assertEqual(pieces(self.placement.locate(short)), [(None, 0, 2)])
        self.assertEqual(pieces(self.placement.locate(short, (5, [(2, 2)], []))), [(5, 2, 2)])
        self.assertEqual(pieces(self.placement.locate(short, (5, [(1, 2)], []))), [(None, 0, 2)])
        dealt = torch.cat([self.tensors[1][-1:], self.tensors[4], self.tensors[0][:5]])
        wanted = [(1, 267, 1), (4, 0, 130), (0, 0, 5)]
        self.assertEqual(pieces(self.placement.locate(dealt, (1, [(267, 1)], []))), wanted)
        self.assertNotEqual(pieces(self.placement.locate(dealt, (2, [(98, 1)], []))), wanted)

    def test_a_single_element_belongs_to_the_parameter_that_the_hint_puts_there(self):
        tensors = dict(self.tensors)
        tensors[6] = torch.cat([tensors[5][:1], tensors[6][1:]])
        placement = Placement(tensors, rank=0, world_size=2)
        dealt = torch.cat([tensors[4], tensors[6][:1]])
        self.assertEqual(pieces(placement.locate(dealt))[1], (5, 0, 1))
        self.assertEqual(pieces(placement.locate(dealt, (4, [(0, 130)], [6])))[1], (6, 0, 1))
        # A hint that contradicts the content is not followed, and an element that no parameter explains may be padding.
        self.assertEqual(pieces(placement.locate(dealt, (4, [(0, 130)], [0])))[1], (None, 0, 1))

    def test_padding_that_is_no_zero_is_no_piece_of_a_parameter(self):
        ranks, held = 2, [1, 4, 0, 2, 5, 6]
        for rank in range(ranks):
            placement = Placement(self.tensors, rank, ranks)
            for garbage in range(len(SIZES)):
                content, expected = [], []
                for index in held:
                    size = -(-SIZES[index] // ranks)
                    start, end = rank * size, min((rank + 1) * size, SIZES[index])
                    padding = self.tensors[garbage][: size - (end - start)]
                    content += [self.tensors[index][start:end], padding]
                    expected += [(index, start, end - start)]
                    expected += [(None, 0, len(padding))] if len(padding) else []
                _, start, length = expected[0]
                hint = (held[0], [(start, length)], held[1:])
                found = pieces(placement.locate(torch.cat(content), hint))
                self.assertEqual(found, expected, (rank, garbage))

    def test_the_first_element_of_a_parameter_that_is_not_due_is_none_of_it(self):
        for index in range(len(SIZES) - 2):
            content = torch.cat([self.tensors[len(SIZES) - 2], self.tensors[index][:1]])
            parts = [(len(SIZES) - 2, 0, SIZES[-2]), (None, 0, 1)]
            self.assertEqual(pieces(self.placement.locate(content)), parts, index)

    def test_what_lies_behind_many_equal_elements_is_found(self):
        # The weight of a norm layer, all ones, cannot be recognised by its content.
        parts = [(0, 0, 66), (None, 0, 300), (1, 0, 268)]
        ones = [self.tensors[0], torch.ones(300), self.tensors[1]]
        self.assertEqual(pieces(self.placement.locate(torch.cat(ones))), parts)

    def test_what_is_not_the_models_stays_unknown(self):
        self.assertEqual(self.locate((None, 0, 40)), [(None, 0, 40)])

    def test_narrow_dtypes_hold_the_starting_values(self):
        fragment = self.tensors[1].to(torch.bfloat16)
        self.assertEqual(pieces(self.placement.locate(fragment)), [(1, 0, SIZES[1])])
