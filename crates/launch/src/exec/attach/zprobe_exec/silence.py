"""Watches for a silent rank, and then reports how many collectives the rank has issued so far.

Collectives that DistributedDataParallel and FSDP2 issue in C++ cannot be watched from Python, but process groups count
them. A rank that has issued more collectives than another rank waits for that rank.
"""

import threading

import torch.distributed as dist

# The seconds between two checks whether the rank has written any record since the last check.
PERIOD = 2.0


class Silence:
    """The thread that checks the process groups of this rank while the rank writes no records."""

    def __init__(self, channel):
        self.channel, self.over = channel, threading.Event()
        self.told = None
        threading.Thread(target=self._look, name="zprobe", daemon=True).start()

    def end(self):
        """Tells the thread to end."""
        self.over.set()

    def _look(self):
        before = None
        while not self.over.wait(PERIOD):
            before, was = self.channel.seq, before
            if was != before:
                continue
            try:
                groups = issued()
                if groups and groups != self.told:
                    self.told = groups
                    self.channel.emit("collectives-issued", groups=groups)
                    before = self.channel.seq
            except Exception:
                return  # A hang is reported without these counts, too.


def issued():
    """The process groups of this process with several ranks, and the number of collectives issued on each."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    groups = {}
    for group, ranks in list(dist.distributed_c10d._world.pg_group_ranks.items()):
        ranks = tuple(sorted(ranks))
        if len(ranks) > 1 and dist.get_rank() in ranks:
            # The counts of several groups with the same ranks are added up, because such groups have no name that is
            # the same on all ranks.
            groups[ranks] = groups.get(ranks, 0) + group._get_sequence_number_for_group()
    return [dict(ranks=list(ranks), count=count) for ranks, count in sorted(groups.items())]
