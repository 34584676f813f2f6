"""The channel of a rank that has joined: a file in the run directory, which zprobe reads while the file grows.

The rank never waits for zprobe, and an error of the file does not reach the script. After the first record that cannot
be written, no further record is written, and the file is unlinked, which tells zprobe that this rank is no longer
watched.
"""

import os
import threading

from zprobe_exec import stacks
from zprobe_rank import channel


class Channel(channel.Channel):
    """Writes the records of this rank to the file of its channel."""

    def __init__(self, settings, rank, lost):
        """`lost` is called once, after a record could not be written. Raises FileExistsError if another process has
        already joined as this rank."""
        claim, flags = os.path.join(settings["directory"], "%d.claim" % rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL
        os.close(os.open(claim, flags | os.O_CLOEXEC, 0o600))
        self.path = os.path.join(settings["directory"], "%d-%d.jsonl" % (rank, os.getpid()))
        super().__init__(settings["run"], rank, os.open(self.path, flags | os.O_CLOEXEC, 0o600))
        self.thread, self.process = threading.get_ident(), os.getpid()
        self.lost, self.is_over, self.is_lost, self.is_let_go = lost, False, False, False

    def emit(self, type, **fields):
        """Writes an event, unless the channel is finished or lost, or this process was forked."""
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
