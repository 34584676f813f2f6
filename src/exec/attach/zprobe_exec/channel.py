"""The channel of a rank that has joined: a file of its own in the run directory, which zprobe reads while it grows.

The rank never waits for zprobe, and what becomes of the file does not become the script's: a record that cannot be
written is the last one.
"""

import os
import threading

from zprobe_exec import stacks
from zprobe_rank import channel


class Channel(channel.Channel):
    """Writer of the records of this rank."""

    def __init__(self, settings, rank, lost):
        """`lost` is called once a record cannot be written."""
        path = os.path.join(settings["directory"], "%d-%d.jsonl" % (rank, os.getpid()))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        super().__init__(settings["run"], rank, fd)
        # The thread that looks at a silent rank writes as well.
        self.lock, self.lost, self.is_lost = threading.Lock(), lost, False

    def emit(self, type, **fields):
        """Writes an event, if events can still be written."""
        with self.lock:
            if self.is_lost:
                return
            try:
                super().emit(type, **fields)
                return
            except OSError as error:
                self.is_lost = True
                stacks.slipped("emit", error)
        self.lost()
