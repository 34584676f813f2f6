"""Tests of the places of an optimizer's tensors in the parameters, in the layouts of engines."""

import types
import unittest

import torch

from zprobe_rank.engines.deepspeed.eyes import consecutive
from zprobe_rank.tensors import shard_start

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


def sharded(rows, ranks, rank, parts=1):
    """A stand-in for a DTensor of two columns that is cut into `parts` for tensor parallelism, and each part over
    `ranks`."""
    sides, places = [ranks, parts], [rank, 0]
    return types.SimpleNamespace(
        shape=(rows * parts, 2),
        numel=lambda: rows * parts * 2,
        placements=[types.SimpleNamespace(is_replicate=lambda: False)] * 2,
        device_mesh=types.SimpleNamespace(
            mesh_dim_names=("shard", "tp"), size=lambda at: sides[at], get_local_rank=lambda at: places[at]
        ),
    )


class Shards(unittest.TestCase):
    def test_a_shard_starts_where_torch_chunk_cuts_the_rows_of_the_rank_s_part(self):
        for rows in range(1, 10):
            for ranks in range(1, 6):
                chunks = torch.arange(rows).chunk(ranks)
                starts = [2 * int(chunk[0]) for chunk in chunks] + [2 * rows] * (ranks - len(chunks))
                for parts in (1, 2):
                    found = [shard_start(sharded(rows, ranks, rank, parts)) for rank in range(ranks)]
                    self.assertEqual(found, starts, (rows, ranks, parts))


if __name__ == "__main__":
    unittest.main()
