"""The recorded part of a buffer: all of it in a small model, samples of it in a large one.

Samples are windows of one code length, each of which the diagnosis can decode by itself: the first
and the last of every piece of a parameter, where engines slip, and some at pseudo-random places. The
same elements are recorded at every point, and by every rank that holds the piece.
"""

import math
import random

import torch

# Windows of a piece, besides the first and the last.
INNER_WINDOWS = 14

# Number of elements from which on norms are computed in fp64 rather than fp32.
CHUNK = 1 << 18


class Pieces:
    """Tensors that follow one another in a buffer; `finish` converts them to the recorded form."""

    def __init__(self, tensors, finish=lambda tensor: tensor):
        self.tensors, self.finish = [tensor.detach().reshape(-1) for tensor in tensors], finish

    def whole(self):
        """The whole buffer."""
        return self.finish(torch.cat(self.tensors))


class Picked:
    """Elements of a buffer, and the whole buffer's norm if these are only samples of it."""

    def __init__(self, values, norm=None):
        self.values, self.norm = values, norm

    def __add__(self, other):
        """The sum; its norm is an estimate that takes the two gradients to be orthogonal."""
        norm = None if self.norm is None else math.hypot(self.norm, other.norm)
        return Picked(self.values + other.values, norm)

    def nothing(self):
        """Zeros of the same length."""
        return Picked(torch.zeros_like(self.values), None if self.norm is None else 0.0)


class Sampler:
    """Chooses elements and picks them: samples if `active`, else all."""

    def __init__(self, active, code_length, seed, inner_windows=INNER_WINDOWS):
        """`inner_windows` is the number of samples of a piece, besides the first and the last."""
        self.active, self.code_length, self.seed = active, code_length, seed
        self.inner_windows = inner_windows
        self.chosen = {}
        self.split = {}

    def announce(self, channel, layout, segments, cuts=None):
        """Emits the elements of a layout's buffers that will be recorded; nothing if all are.

        `cuts` are places in parameters, by index, at which the part of some rank ends.
        """
        if not self.active:
            return
        chosen = self.choose(cut(segments, cuts or {}))
        self.chosen[layout] = chosen
        self.split = {}
        channel.emit("layout", layout=layout, segments=[piece for _, piece in chosen], sampled=True)

    def choose(self, segments):
        """The sampled segments, each with the place of its first element in the buffer."""
        chosen, start = [], 0
        for segment in segments:
            if segment["param"] is not None:
                for first, end in self._windows(segment):
                    piece = dict(param=segment["param"], offset=segment["offset"] + first, len=end - first)
                    chosen.append((start + first, piece))
            start += segment["len"]
        return chosen

    def _windows(self, segment):
        """Disjoint runs of elements of one piece, in order."""
        size, length = self.code_length, segment["len"]
        if length <= (self.inner_windows + 2) * size:
            return [(0, length)]
        # Seeded by the piece itself, so that every rank that holds it makes the same choice.
        place = random.Random("%d %d %d %d" % (self.seed, segment["param"], segment["offset"], length))
        starts = [0, length - size] + [place.randrange(length - size) for _ in range(self.inner_windows)]
        runs = []
        for start in sorted(starts):
            if runs and start <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(runs[-1][1], start + size))
            else:
                runs.append((start, start + size))
        return runs

    def index(self, segments):
        """Places of the chosen elements of one tensor that consists of `segments`; None for all."""
        if not self.active:
            return None
        return _index(self.choose(segments))

    def pick(self, tensor, index, finish=lambda tensor: tensor):
        """The elements at `index`, copied."""
        if index is None:
            return Picked(finish(tensor.clone()))
        return Picked(finish(tensor[index]), norm(tensor, finish))

    def record(self, channel, point, layout, pieces, **at):
        """Emits a buffer, or the part of it that is to be recorded."""
        if not self.active:
            channel.buffer(point, layout, pieces.whole(), **at)
            return
        lengths = tuple(tensor.numel() for tensor in pieces.tensors)
        if (layout, lengths) not in self.split:
            self.split[layout, lengths] = self._split(layout, lengths)
        indices = self.split[layout, lengths]
        emit(
            channel,
            point,
            layout,
            [self.pick(tensor, index, pieces.finish) for tensor, index in zip(pieces.tensors, indices)],
            **at
        )

    def _split(self, layout, lengths):
        """Places of a layout's chosen elements in each of its tensors."""
        index, start, indices = _index(self.chosen[layout]), 0, []
        for length in lengths:
            indices.append(index[(index >= start) & (index < start + length)] - start)
            start += length
        return indices


def emit(channel, point, layout, parts, **at):
    """Emits a buffer that consists of picked parts."""
    norms = [part.norm for part in parts]
    whole = None in norms
    values = torch.cat([part.values for part in parts])
    channel.buffer(point, layout, values, norm=None if whole else math.hypot(*norms), **at)


def cut(segments, cuts):
    """Segments, cut at places in parameters."""
    pieces = []
    for segment in segments:
        first, end = segment["offset"], segment["offset"] + segment["len"]
        inner = sorted(place for place in cuts.get(segment["param"], ()) if first < place < end)
        for start, stop in zip([first] + inner, inner + [end]):
            pieces.append(dict(param=segment["param"], offset=start, len=stop - start))
    return pieces


def ends(partitions):
    """Places in parameters, by index, at which a segment of any rank begins or ends."""
    places = {}
    for segment in (segment for segments in partitions for segment in segments):
        at = places.setdefault(segment["param"], set())
        at.update((segment["offset"], segment["offset"] + segment["len"]))
    return places


def norm(tensor, finish):
    """Euclidean norm of a long tensor, computed without a copy of the whole."""
    squares = 0.0
    for chunk in tensor.split(CHUNK):
        chunk = finish(chunk)
        part = torch.linalg.vector_norm(chunk, dtype=torch.float32).item()
        if not math.isfinite(part):
            # The sum may overflow in fp32 alone.
            part = torch.linalg.vector_norm(chunk.double()).item()
        squares += part * part
    return math.sqrt(squares)


def _index(chosen):
    runs = [torch.arange(start, start + piece["len"]) for start, piece in chosen]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
