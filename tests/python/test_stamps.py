"""Tests that the first step's gradients show the place of every element: pieces may stay unread, but none is
misplaced."""

import os
import pathlib
import sys
import unittest

import torch

from zprobe_rank.codes import Code

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import coded, gaps, stamps  # noqa: E402
from zprobe_exec.names import Named  # noqa: E402

# The widths of the tested models: all of them in full tests, else a small, an odd and a large width.
WIDTHS = [8, 24, 31, 33, 100] if "ZPROBE_TEST_FULL" in os.environ else [8, 31, 100]
RANKS = [2, 3, 5, 6]


def shapes(width):
    """The shapes of a small model's parameters, by name: matrices, vectors of the model's width, and vectors of three
    elements."""
    of = {"embed": (37, width)}
    for block in range(2):
        of["%d.gain" % block] = (3,)
        of["%d.norm" % block] = (width,)
        of["%d.up" % block], of["%d.up_bias" % block] = (2 * width, width), (2 * width,)
        of["%d.down" % block], of["%d.down_bias" % block] = (width, 2 * width), (width,)
    return dict(of, head=(37, width), head_bias=(37,))


class Gradients:
    """The gradients of a model's first step, averaged over all ranks and microbatches and scaled by 0.37."""

    def __init__(self, width, ranks, microbatches=2, weight=lambda number: 1):
        self.params = {name: Named(name, shape, True) for name, shape in shapes(width).items()}
        self.sizes = {name: param.numel for name, param in self.params.items()}
        code = Code(ranks * coded.RESERVED, 0)
        self.stamp = stamps.Stamp(code.length, ranks)
        source = coded.Source(code, coded.starts_of(self.params.values()), 2.0**-10, self.stamp)
        columns = [rank * coded.RESERVED + number for rank in range(ranks) for number in range(microbatches)]
        self.expected = gaps.Expected(self.stamp, self.sizes, source, columns)
        self.of = {}
        for name, size in self.sizes.items():
            parts = [weight(it) * source.gradient(name, torch.zeros(size), it) for it in columns]
            self.of[name] = 0.37 * sum(parts) / len(columns)

    def located(self, elements, rank):
        """Pairs of an element and its recognised place, in a tensor of these elements. Elements and places are (name,
        index), `None` for padding, or `"unread"`."""
        reader = stamps.Reader(self.stamp, self.params, self.expected, rank)
        reader.factor = float(self.of["0.norm"][0]) / stamps.PILOT
        values = torch.tensor([0.0 if it is None else float(self.of[it[0]][it[1]]) for it in elements])
        found = []
        for segment in reader.locate(values):
            name, places = segment["param"], range(segment["offset"], segment["offset"] + segment["len"])
            nothing = "unread" if segment.get("unread") else None
            found += [(name, place) if name is not None else nothing for place in places]
        return list(zip(elements, found))

    def flat(self, names, rank, ranks):
        """A rank's partition of the parameters `names` in flat order, as DeepSpeed's stages 1 and 2 cut it."""
        order = [(name, place) for name in names for place in range(self.sizes[name])]
        order += [None] * (-len(order) % ranks)
        length = len(order) // ranks
        return order[rank * length : (rank + 1) * length]

    def shards(self, rank, ranks):
        """A rank's shards of all parameters, as DeepSpeed's stage 3 cuts them."""
        elements = []
        for name, size in self.sizes.items():
            length = -(-size // ranks)
            places = range(rank * length, (rank + 1) * length)
            elements += [(name, place) if place < size else None for place in places]
        return elements


class Places(unittest.TestCase):
    def check(self, gradients, elements, rank):
        """Checks that all but a few elements are found, and that no element is found at a wrong place."""
        located = gradients.located(elements, rank)
        known = [(element, found) for element, found in located if found != "unread"]
        self.assertEqual([it for it, _ in known], [found for _, found in known])
        unread = {element for element, found in located if found == "unread" and element is not None}
        # In another order of the parameters, a piece of one or two elements cannot be recognised.
        self.assertLessEqual(len(unread), 8, unread)

    def check_all(self, weight):
        for width in WIDTHS:
            for ranks in RANKS:
                gradients = Gradients(width, ranks, weight=weight)
                names = list(gradients.sizes)
                vectors = [name for name in names if len(gradients.params[name].shape) == 1]
                matrices = [name for name in names if name not in vectors]
                for rank in range(ranks):
                    with self.subTest(width=width, ranks=ranks, rank=rank):
                        for order in (names, names[::-1], vectors, matrices):
                            self.check(gradients, gradients.flat(order, rank, ranks), rank)
                        self.check(gradients, gradients.shards(rank, ranks), rank)

    def test_pieces_of_all_lengths_are_found(self):
        self.check_all(lambda number: 1)

    def test_a_block_is_recognised_whatever_its_number(self):
        names = torch.tensor([0, 1, 0xDEADBEEF, stamps.NAMES - 1])
        for number in (0, 1, 2, stamps.NUMBERS - 1):
            numbers = torch.full_like(names, number)
            mixed = stamps.mixed(names, numbers)
            self.assertEqual([it.tolist() for it in stamps.unmixed(*mixed)], [names.tolist(), numbers.tolist()])

    def test_a_tensor_that_lies_where_it_is_expected_is_what_a_search_makes_of_it(self):
        gradients = Gradients(100, 2)
        for name, size in gradients.sizes.items():
            if size < 100:
                continue
            for first, end in [(0, size), (size // 2, size), (0, size // 2)]:
                for sign in (1, -1):
                    values = sign * gradients.of[name][first:end]
                    found = []
                    for hint in (None, (name, first)):
                        reader = stamps.Reader(gradients.stamp, gradients.params, gradients.expected, 0)
                        found.append((reader.locate(values, hint), reader.factor))
                    self.assertEqual(found[0], found[1], (name, first, end))
                    self.assertIsNotNone(reader._run_at(values, name, first))
                    self.assertIsNone(reader._run_at(values, name, first + 1))

    def test_neighbouring_blocks_differ_in_most_digits(self):
        gradients = Gradients(33, 4)
        blocks = gradients.stamp.values("embed", 33 * 37)[:32].view(2, 16)
        self.assertLess(int((blocks[0] == blocks[1]).sum()), 4)

    def test_what_is_no_gradient_stays_unread(self):
        gradients = Gradients(33, 2)
        reader = stamps.Reader(gradients.stamp, gradients.params, gradients.expected, 0)
        noise = torch.randn(5000, generator=torch.Generator().manual_seed(0))
        whole = torch.cat([gradients.of["embed"], noise])
        segments = reader.locate(whole)
        self.assertEqual(segments[0], dict(param="embed", offset=0, len=33 * 37))
        self.assertTrue(all(it["param"] is None and it["unread"] for it in segments[1:]), segments[1:])

    def test_padding_is_no_gradient(self):
        gradients = Gradients(33, 2)
        reader = stamps.Reader(gradients.stamp, gradients.params, gradients.expected, 0)
        segments = reader.locate(torch.cat([gradients.of["embed"], torch.zeros(40)]))
        self.assertEqual(segments[1:], [dict(param=None, offset=0, len=40)])
