"""Letters between the ranks: files in the run directory, so that no collective of ours can hang the job."""

import fcntl
import json
import os
import time

# Seconds between two looks at letters, and at zprobe.
POLL, LOOK = 0.02, 1.0

# File that zprobe keeps locked for as long as it lives.
LOCK = "zprobe.lock"


class Mailbox:
    """The letters of all ranks of a job on one subject each."""

    def __init__(self, directory, rank, world_size):
        self.directory, self.rank, self.world_size = directory, rank, world_size
        # Ranks for which this one does not wait again.
        self.late = set()
        os.makedirs(directory, exist_ok=True)

    def post(self, subject, content):
        """Leaves a letter for the other ranks. A letter is there as a whole or not at all."""
        path = self._path(subject, self.rank)
        with open(path + ".part", "w") as file:
            json.dump(content, file)
        os.replace(path + ".part", path)

    def collect(self, subject, patience):
        """The letters of all ranks, by rank, without those of ranks that are gone, or that did not come within `patience`
        seconds. A rank that did not write in time is not waited for again, and none for long once zprobe has ended, which
        carries letters from other machines."""
        letters, deadline, look = {}, time.monotonic() + patience, time.monotonic() + LOOK
        while True:
            missing = [rank for rank in range(self.world_size) if rank not in letters]
            # Looked at first: what a rank has posted was there before zprobe said that the rank is gone.
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
        """False once zprobe has ended."""
        try:
            with open(os.path.join(os.path.dirname(self.directory), LOCK)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # It is locked, or this cannot be known.
            return True
        return False

    def _path(self, subject, rank):
        return os.path.join(self.directory, "%s.%d" % (subject, rank))
