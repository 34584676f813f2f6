"""Which parameters a fragment of the optimizer's holds, read from its content.

Engines flatten, reorder, pad and shard parameters, each release in its own way. Before the first
step a fragment holds starting values, and the model's are made so that a run of them occurs only
once: so a fragment says by itself where each of its elements belongs.
"""

# Elements that make a run unmistakable: 16 of 16 possible values each.
UNMISTAKABLE = 16


class Placement:
    """Finds runs of the model's starting values."""

    def __init__(self, tensors):
        """`tensors`: each trainable parameter's starting values (any shape) by index."""
        self.params = {index: _words(tensor) for index, tensor in tensors.items()}
        self.starts = {}
        self.windows = {}
        for index, words in self.params.items():
            self.starts.setdefault(words[0], []).append((index, 0))
            for offset in range(len(words) - UNMISTAKABLE + 1):
                window = tuple(words[offset : offset + UNMISTAKABLE])
                self.windows.setdefault(window, []).append((index, offset))

    def locate(self, tensor, hint=None):
        """Segments (param, offset, len) of a flat fragment; param None where nothing is recognised.

        A fragment that is too short to be recognised may be given a hint, (param, offset): it is
        followed if that is what the fragment holds.
        """
        words = _words(tensor)
        if hint is not None:
            index, offset = hint
            if self.params.get(index, [])[offset : offset + len(words)] == words:
                return [dict(param=index, offset=offset, len=len(words))]
        segments, at = [], 0
        while at < len(words):
            found = self._longest(words, at, segments[-1] if segments else None)
            if found is None:
                _append_unknown(segments, 1)
                at += 1
            else:
                segments.append(found)
                at += found["len"]
        return segments

    def _longest(self, words, at, before):
        """The longest run of one parameter that starts at `at`, if it is unmistakable."""
        window = tuple(words[at : at + UNMISTAKABLE])
        candidates = list(self.windows.get(window, ()))
        if not candidates:
            candidates = list(self.starts.get(words[at], ()))
            if at == 0:
                # A shard may begin inside a parameter, with less than a window left of it.
                candidates += self._endings(words)
        best = None
        for index, offset in candidates:
            param = self.params[index]
            length = 0
            while (
                at + length < len(words)
                and offset + length < len(param)
                and words[at + length] == param[offset + length]
            ):
                length += 1
            whole = offset + length == len(param)
            cut = at + length == len(words) and before is not None and before["param"] is not None
            if length >= UNMISTAKABLE or whole or cut:
                if best is None or length > best["len"]:
                    best = dict(param=index, offset=offset, len=length)
        return best

    def _endings(self, words):
        """Where a parameter's last few elements are the first few of `words`."""
        endings = []
        for index, param in self.params.items():
            for length in range(min(UNMISTAKABLE - 1, len(param) - 1, len(words)), 2, -1):
                if param[-length:] == words[:length]:
                    endings.append((index, len(param) - length))
        return endings


def _append_unknown(segments, length):
    if segments and segments[-1]["param"] is None:
        segments[-1]["len"] += length
    else:
        segments.append(dict(param=None, offset=0, len=length))


def _words(tensor):
    return tensor.detach().to("cpu").float().reshape(-1).tolist()
