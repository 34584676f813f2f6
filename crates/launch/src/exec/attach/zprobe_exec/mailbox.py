"""Messages between the ranks, as files in the run directory, so that no collective of zprobe can hang the job."""

import fcntl
import json
import os
import time

# The seconds between two checks for messages, and between two checks that zprobe is alive.
POLL, LOOK = 0.02, 1.0

# The name of the file that zprobe keeps locked while zprobe runs.
LOCK = "zprobe.lock"


class Mailbox:
    """The messages of all ranks of a job. A message has a subject, such as `first-step`, and each rank posts at most
    one message on a subject."""

    def __init__(self, directory, rank, world_size):
        self.directory, self.rank, self.world_size = directory, rank, world_size
        # The ranks for which this rank does not wait again.
        self.late = set()
        os.makedirs(directory, exist_ok=True)

    def post(self, subject, content):
        """Posts a message for the other ranks. The message appears as a whole, never in parts."""
        path = self._path(subject, self.rank)
        with open(path + ".part", "w") as file:
            json.dump(content, file)
        os.replace(path + ".part", path)

    def collect(self, subject, patience):
        """The messages of all ranks on a subject, by rank. A rank without a message is left out if it has exited, or
        after `patience` seconds; the mailbox never waits again for a rank that was late once. After the end of zprobe,
        which carries messages between machines, the wait is short."""
        letters, deadline, look = {}, time.monotonic() + patience, time.monotonic() + LOOK
        while True:
            missing = [rank for rank in range(self.world_size) if rank not in letters]
            # The marks of exited ranks are read first: a rank's message precedes zprobe's mark of its exit.
            gone = {rank for rank in missing if os.path.exists(self._path("gone", rank))}
            for rank in missing:
                if os.path.exists(self._path(subject, rank)):
                    with open(self._path(subject, rank)) as file:
                        letters[rank] = json.load(file)
            if gone.union(letters, self.late).issuperset(missing):
                return letters
            if time.monotonic() > deadline:
                self.late |= set(missing) - set(letters) if patience else set()
                return letters
            if time.monotonic() > look:
                look = time.monotonic() + LOOK
                deadline = deadline if self._is_carried() else min(deadline, look)
            time.sleep(POLL)

    def _is_carried(self):
        """True while zprobe runs, which carries messages between machines; also true if the state of zprobe is unknown.
        """
        try:
            with open(os.path.join(os.path.dirname(self.directory), LOCK)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # The file is locked, or its state cannot be read.
            return True
        return False

    def _path(self, subject, rank):
        return os.path.join(self.directory, "%s.%d" % (subject, rank))
