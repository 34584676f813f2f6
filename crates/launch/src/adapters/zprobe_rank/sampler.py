"""Chooses the recorded part of a buffer: the whole buffer of a small model, samples of the buffer of a large model.

Samples are windows of one code length, which the diagnosis can decode one by one. Each piece of a parameter has the
following windows: the first and the last, because engines make mistakes at borders, and some at pseudo-random places.
The same elements are recorded at every point, and by every rank that holds the piece.
"""

import math
import random

import torch

# The number of windows of a piece, besides the first and the last window.
INNER_WINDOWS = 14

# The number of elements whose sum of squares is computed in fp32; the sums of such chunks are added up in fp64.
CHUNK = 1 << 18


class Pieces:
    """The tensors that follow one another in a buffer; `finish` converts a tensor to the recorded form."""

    def __init__(self, tensors, finish=lambda tensor: tensor):
        self.tensors, self.finish = [tensor.detach().reshape(-1) for tensor in tensors], finish

    def whole(self):
        """The whole buffer in the recorded form, as one flat tensor."""
        return self.finish(torch.cat(self.tensors))


class Picked:
    """Picked elements of a buffer; `norm` is the norm of the whole buffer if the elements are only samples of it, else
    `None`."""

    def __init__(self, values, norm=None):
        self.values, self.norm = values, norm

    def __add__(self, other):
        """The sum of two gradients. The norm of the sum is an estimate that assumes orthogonal gradients."""
        norm = None if self.norm is None else math.hypot(self.norm, other.norm)
        return Picked(self.values + other.values, norm)

    def nothing(self):
        """Zeros with the same number of elements, and the norm 0 for samples."""
        return Picked(torch.zeros_like(self.values), None if self.norm is None else 0.0)


class Sampler:
    """Chooses the recorded elements and picks them from tensors: samples if `active`, else all elements."""

    def __init__(self, active, code_length, seed, inner_windows=INNER_WINDOWS):
        """`inner_windows` is the number of sampled windows of a piece, besides the first and the last window."""
        self.active, self.code_length, self.seed = active, code_length, seed
        self.inner_windows = inner_windows
        self.chosen = {}
        self.split = {}

    def announce(self, channel, layout, segments, cuts=None):
        """Emits which elements of a layout's buffers will be recorded; emits no event if all elements will be.

        `cuts` has the places, by the index of the parameter, at which the part of some rank begins or ends.
        """
        if not self.active:
            return
        chosen = self.choose(cut(segments, cuts or {}))
        self.chosen[layout] = chosen
        self.split = {}
        channel.emit("layout", layout=layout, segments=[piece for _, piece in chosen], sampled=True)

    def choose(self, segments):
        """The sampled segments as pairs: the place in the buffer of the first element, and the segment."""
        chosen, start = [], 0
        for segment in segments:
            if segment["param"] is not None:
                for first, end in self._windows(segment):
                    piece = dict(param=segment["param"], offset=segment["offset"] + first, len=end - first)
                    chosen.append((start + first, piece))
            start += segment["len"]
        return chosen

    def _windows(self, segment):
        """The sampled runs (first, end) of elements within one piece: disjoint and in order."""
        size, length = self.code_length, segment["len"]
        if length <= (self.inner_windows + 2) * size:
            return [(0, length)]
        # The seed depends on the piece, so that all ranks that hold the piece make the same choice.
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
        """The indices of the chosen elements in a tensor that consists of `segments`; `None` if all are recorded."""
        if not self.active:
            return None
        return _index(self.choose(segments))

    def pick(self, tensor, index, finish=lambda tensor: tensor):
        """Copies of the tensor's elements at `index`; `None` copies all elements."""
        if index is None:
            return Picked(finish(tensor.clone()))
        return Picked(finish(tensor[index]), norm(tensor, finish))

    def record(self, channel, point, layout, pieces, **at):
        """Emits a buffer, or only its sampled elements if the sampler is active."""
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
        """The indices of a layout's chosen elements within each tensor of the layout."""
        index, start, indices = _index(self.chosen[layout]), 0, []
        for length in lengths:
            indices.append(index[(index >= start) & (index < start + length)] - start)
            start += length
        return indices


def emit(channel, point, layout, parts, **at):
    """Emits a buffer that consists of `parts`, which are `Picked`."""
    norms = [part.norm for part in parts]
    whole = None in norms
    values = torch.cat([part.values for part in parts])
    channel.buffer(point, layout, values, norm=None if whole else math.hypot(*norms), **at)


def cut(segments, cuts):
    """The segments, cut further at the places `cuts`, which are given by the index of the parameter."""
    pieces = []
    for segment in segments:
        first, end = segment["offset"], segment["offset"] + segment["len"]
        inner = sorted(place for place in cuts.get(segment["param"], ()) if first < place < end)
        for start, stop in zip([first] + inner, inner + [end]):
            pieces.append(dict(param=segment["param"], offset=start, len=stop - start))
    return pieces


def ends(partitions):
    """The places, by the index of the parameter, at which a segment of any rank begins or ends."""
    places = {}
    for segment in (segment for segments in partitions for segment in segments):
        at = places.setdefault(segment["param"], set())
        at.update((segment["offset"], segment["offset"] + segment["len"]))
    return places


def norm(tensor, finish):
    """The Euclidean norm of a long tensor, computed without a copy of the whole tensor."""
    squares = 0.0
    for chunk in tensor.split(CHUNK):
        chunk = finish(chunk)
        part = torch.linalg.vector_norm(chunk, dtype=torch.float32).item()
        if not math.isfinite(part):
            # The sum of squares may overflow in fp32 although all elements are finite.
            part = torch.linalg.vector_norm(chunk.double()).item()
        squares += part * part
    return math.sqrt(squares)


def _index(chosen):
    runs = [torch.arange(start, start + piece["len"]) for start, piece in chosen]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
