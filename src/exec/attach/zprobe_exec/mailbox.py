"""Letters between the ranks: files in the run directory, so that no collective of ours can hang the job."""

import json
import os
import time

POLL = 0.02


class Mailbox:
    """The letters of all ranks of a job on one subject each."""

    def __init__(self, directory, rank, world_size):
        self.directory, self.rank, self.world_size = directory, rank, world_size
        os.makedirs(directory, exist_ok=True)

    def post(self, subject, content):
        """Leaves a letter for the other ranks. A letter is there as a whole or not at all."""
        path = self._path(subject, self.rank)
        with open(path + ".part", "w") as file:
            json.dump(content, file)
        os.replace(path + ".part", path)

    def collect(self, subject, patience):
        """The letters of all ranks, by rank, without those that did not come within `patience` seconds."""
        letters, deadline = {}, time.monotonic() + patience
        while True:
            for rank in range(self.world_size):
                if rank not in letters and os.path.exists(self._path(subject, rank)):
                    with open(self._path(subject, rank)) as file:
                        letters[rank] = json.load(file)
            if len(letters) == self.world_size or time.monotonic() > deadline:
                return letters
            time.sleep(POLL)

    def _path(self, subject, rank):
        return os.path.join(self.directory, "%s.%d" % (subject, rank))
