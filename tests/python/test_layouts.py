"""Tests of the places of an optimizer's tensors in the parameters, in the layouts of engines."""

import itertools
import types
import unittest

import torch

from zprobe_rank.engines.deepspeed.eyes import consecutive
from zprobe_rank.tensors import shard_runs

SIZES = [7, 1, 0, 20, 3]


class Partitions(unittest.TestCase):
    def test_the_partitions_of_all_ranks_hold_each_element_once_and_in_order(self):
        parameters = [torch.empty(size) for size in SIZES]
        everything = [(number, it) for number, size in enumerate(SIZES) for it in range(size)]
        for ranks in (1, 2, 3, 4, 40):
            size, held = -(-len(everything) // ranks), []
            for rank in range(ranks):
                for parameter, offset, length, room in consecutive(parameters, rank * size, size):
                    self.assertEqual(length, room)
                    number = next(number for number, it in enumerate(parameters) if it is parameter)
                    held += [(number, offset + it) for it in range(length)]
            self.assertEqual(held, everything, ranks)


def sharded(rows, columns, dim, ranks, rank, parts=1):
    """A stand-in for a DTensor that is cut into `parts` for tensor parallelism, and each part along `dim` over `ranks`."""
    sides, places = [ranks, parts], [rank, 0]
    return types.SimpleNamespace(
        shape=(rows * parts, columns),
        placements=[types.SimpleNamespace(is_replicate=lambda: False, dim=dim)] * 2,
        device_mesh=types.SimpleNamespace(
            mesh_dim_names=("shard", "tp"), size=lambda at: sides[at], get_local_rank=lambda at: places[at]
        ),
    )


class Shards(unittest.TestCase):
    def test_the_runs_of_a_shard_are_the_elements_of_the_rank_s_chunk(self):
        for rows, columns in ((1, 2), (5, 2), (8, 3), (3, 7), (4, 8)):
            for dim, ranks, parts in itertools.product((0, 1), range(1, 6), (1, 2)):
                chunks = torch.arange(rows * columns).view(rows, columns).chunk(ranks, dim)
                wanted = [chunk.flatten().tolist() for chunk in chunks] + [[]] * (ranks - len(chunks))
                for rank in range(ranks):
                    runs = shard_runs(sharded(rows, columns, dim, ranks, rank, parts))
                    held = [start + it for start, length in runs for it in range(length)]
                    self.assertEqual(held, wanted[rank], (rows, columns, dim, ranks, rank, parts))


if __name__ == "__main__":
    unittest.main()
