"""The silence of a rank: the collectives that it has issued so far, told once it has said nothing else for a while.

Collectives are issued in C++ (by DistributedDataParallel, by FSDP2), where no function of Python can be watched, and
process groups count them. A rank that has issued more of them than another one waits for it.
"""

import threading

import torch.distributed as dist

# Seconds between two looks at whether the rank has said anything since the last one.
PERIOD = 2.0


class Silence:
    """The thread that looks at the process groups of this rank while the rank is silent."""

    def __init__(self, channel):
        self.channel, self.over = channel, threading.Event()
        self.told = None
        threading.Thread(target=self._look, name="zprobe", daemon=True).start()

    def end(self):
        """Stops looking."""
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
                return  # What hangs is told without it.


def issued():
    """The process groups of this process that have several ranks, with the collectives issued on each."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    groups = {}
    for group, ranks in list(dist.distributed_c10d._world.pg_group_ranks.items()):
        ranks = tuple(sorted(ranks))
        if len(ranks) > 1 and dist.get_rank() in ranks:
            # Several groups of the same ranks are told apart by nothing that all ranks know alike: their sum counts.
            groups[ranks] = groups.get(ranks, 0) + group._get_sequence_number_for_group()
    return [dict(ranks=list(ranks), count=count) for ranks, count in sorted(groups.items())]
