"""Tests of records that several threads write."""

import json
import os
import tempfile
import threading
import unittest

import torch
import torch.distributed as dist

from zprobe_rank import collectives
from zprobe_rank.channel import Channel

THREADS, EVENTS = 8, 200


def in_threads(work):
    """Calls `work` in several threads at once, and waits for all of them."""
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestRecords(unittest.TestCase):
    def setUp(self):
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.channel = Channel("run", 0, self.file.fileno())

    def written(self):
        """The records in the order in which they were written."""
        self.file.seek(0)
        return [json.loads(line) for line in self.file]

    def test_numbers_of_records_follow_each_other(self):
        def work():
            for _ in range(EVENTS):
                self.channel.importing("torch")
                os.sched_yield()

        in_threads(work)
        self.assertEqual([record["seq"] for record in self.written()], list(range(THREADS * EVENTS)))

    def test_numbers_of_collectives_follow_each_other(self):
        for name in collectives.WATCHED:
            if hasattr(dist, name):
                self.addCleanup(setattr, dist, name, getattr(dist, name))
        dist.all_reduce = lambda tensor: None
        collectives.watch(self.channel)
        tensor = torch.ones(3)

        def work():
            for _ in range(EVENTS):
                dist.all_reduce(tensor)

        in_threads(work)
        numbers = [record["event"]["sequence"] for record in self.written()]
        self.assertEqual(numbers, list(range(THREADS * EVENTS)))


if __name__ == "__main__":
    unittest.main()
