"""Writes events as JSON lines, also in a process that has not imported torch yet."""

import json
import os
import threading
import time


class Records:
    """Writes the records of one sender; `rank` is the rank's number, or `None` for the host."""

    def __init__(self, run, rank, fd, seq=0):
        self.run, self.rank, self.fd, self.seq = run, rank, fd, seq
        # Other threads write, too: DDP's communication hooks issue collectives in a thread of Gloo. The lock is
        # reentrant, because a signal handler may write while this thread holds the lock.
        self.lock = threading.RLock()

    def emit(self, type, **fields):
        """Writes an event immediately and completely, so that the event survives the death of this process."""
        event = dict(type=type, **fields)
        with self.lock:
            record = dict(v=1, run=self.run, rank=self.rank, seq=self.seq, t_ns=time.time_ns(), event=event)
            data = memoryview((json.dumps(record, allow_nan=False) + "\n").encode())
            self.seq += 1
            while data:
                data = data[os.write(self.fd, data) :]

    def importing(self, what):
        """Emits that the import of the package `what` begins, which may take long."""
        self.emit("importing", what=what)
