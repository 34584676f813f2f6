"""The channel of a rank that has joined: a file of its own in the run directory, which zprobe reads while it grows.

The rank never waits for zprobe, and what becomes of the file does not become the script's: a record that cannot be
written is the last one, and the file is unlinked, which says that this rank is no longer watched.
"""

import os
import threading

from zprobe_exec import stacks
from zprobe_rank import channel


class Channel(channel.Channel):
    """Writer of the records of this rank."""

    def __init__(self, settings, rank, lost):
        """`lost` is called once a record cannot be written. Raises FileExistsError for a second process of a rank."""
        claim, flags = os.path.join(settings["directory"], "%d.claim" % rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL
        os.close(os.open(claim, flags | os.O_CLOEXEC, 0o600))
        self.path = os.path.join(settings["directory"], "%d-%d.jsonl" % (rank, os.getpid()))
        super().__init__(settings["run"], rank, os.open(self.path, flags | os.O_CLOEXEC, 0o600))
        # The thread that looks at a silent rank writes as well, and so may a signal handler of the script's.
        self.lock, self.thread, self.process = threading.RLock(), threading.get_ident(), os.getpid()
        self.lost, self.is_over, self.is_lost, self.is_let_go = lost, False, False, False

    def emit(self, type, **fields):
        """Writes an event, if events can still be written."""
        if os.getpid() != self.process:
            return
        with self.lock:
            if not self.is_lost and not self.is_over:
                try:
                    super().emit(type, **fields)
                    self.is_over = type == "finished"
                except OSError as error:
                    self.is_lost = True
                    stacks.slipped("emit", error)
                    self._unlink()
        if self.is_lost and not self.is_let_go and threading.get_ident() == self.thread:
            self.is_let_go = True
            self.lost()

    def _unlink(self):
        try:
            os.unlink(self.path)
        except OSError as error:
            stacks.slipped("unlink", error)
