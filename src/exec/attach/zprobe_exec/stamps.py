"""Address stamps: gradients from which the place of every element can be read.

A parameter has a block of 16 elements with an address at its beginning, and again after every `gap`
elements that are free for other use. The first element of a block is -16; each of the others is a digit
of the address plus one, so that it lies between 1 and 16. The address is a number of 60 bits: 32 for the
name of the parameter and 28 for the number of the block. The first element says with which factor the
block was multiplied, and where it begins. So a block is recognised wherever it lies, in any dtype with
8 significant bits, whatever it was averaged and scaled with. A parameter that has no room for a block
and 16 elements more holds nothing but its address.
"""

import zlib

import torch

BLOCK = 16
PILOT = -16
NAME_DIGITS, NUMBER_DIGITS = 8, 7

# Largest distance of a digit from an integer: half of what lies between two digits.
SLACK = 0.5

# Number of elements that are read at once.
CHUNK = 1 << 16

# Share of the least element of some that the first elements of their blocks have, unless parameters there
# were multiplied with different factors.
PROMINENT = 0.4

# Share of some elements that the blocks found there have to account for.
MOST = 0.9


def key(name):
    """The 32 bits that stand for a parameter's name."""
    return zlib.crc32(name.encode())


class Stamp:
    """The blocks of all parameters of a model."""

    def __init__(self, gap, world_size):
        self.stride, self.world_size = BLOCK + gap, world_size

    def is_small(self, size):
        """True for a parameter that holds nothing but its address, so that a rank's shard of it has some
        of that."""
        return size < 2 * self.stride * self.world_size

    def step(self, size):
        """Distance between two blocks of a parameter of this size."""
        return BLOCK if self.is_small(size) else self.stride

    def shards(self, size, row):
        """The shards that engines cut a parameter into: equal parts of its rows, or of its elements."""
        parts = set()
        for unit in (row, 1):
            length = -(-(size // unit) // self.world_size) * unit
            parts.update((start, min(start + length, size)) for start in range(0, size, length))
        return sorted(parts, key=lambda part: (part[0] - part[1], part[0]))

    def values(self, name, size):
        """The elements of a parameter's blocks, as int8, and 0 elsewhere."""
        step = self.step(size)
        number = torch.arange(-(-size // step), dtype=torch.int64)[:, None]
        digits = [((key(name) >> 4 * digit) & 15) + 1 for digit in range(NAME_DIGITS)]
        values = torch.zeros(len(number), step, dtype=torch.int8)
        values[:, :1] = PILOT
        values[:, 1 : 1 + NAME_DIGITS] = torch.tensor(digits, dtype=torch.int8)
        shifts = 4 * torch.arange(NUMBER_DIGITS)
        values[:, 1 + NAME_DIGITS : BLOCK] = ((number >> shifts) & 15) + 1
        return values.reshape(-1)[:size]

    def free(self, size, first, end, most):
        """Some of the runs (first, end) of free elements between two places of a parameter: `most` at most,
        spread evenly."""
        if self.is_small(size):
            return []
        starts = range(first // self.stride * self.stride, end, self.stride)
        runs = []
        for start in starts[:: max(-(-len(starts) // most), 1)]:
            run = (max(first, start + BLOCK), min(end, start + self.stride, size))
            if run[0] < run[1]:
                runs.append(run)
        return runs


class Run:
    """Blocks of one parameter that lie where they should lie beside each other."""

    def __init__(self, name, origin, votes, first, last):
        # `origin` is the place at which the parameter's first element would lie.
        self.name, self.origin, self.votes = name, origin, votes
        self.first, self.last = first, last


class Reader:
    """Recognises the parameters of a model in the tensors of an optimizer."""

    def __init__(self, stamp, params):
        """`params`: the parameters by name, in the order of the model."""
        self.stamp = stamp
        sizes = self.sizes = {name: param.numel for name, param in params.items()}
        self.rows = {name: max(it.numel // max(it.shape[0], 1), 1) if it.shape else 1 for name, it in params.items()}
        self.order = list(sizes)
        self.place = {name: place for place, name in enumerate(self.order)}
        pairs = sorted((key(name), place) for place, name in enumerate(self.order))
        self.keys = torch.tensor([pair[0] for pair in pairs] or [0], dtype=torch.int64)
        self.of_key = torch.tensor([pair[1] for pair in pairs] or [0], dtype=torch.int64)
        self.lengths = torch.tensor(list(sizes.values()) or [0], dtype=torch.int64)
        self.steps = torch.tensor([stamp.step(size) for size in sizes.values()] or [BLOCK], dtype=torch.int64)
        self.small, self.factor = {}, None

    def locate(self, values, hint=None):
        """Segments (param, offset, len) of a flat tensor, in order; param None for elements of none.

        `hint` is the place, (name, offset), at which the whole tensor probably lies: it is followed
        unless the blocks say otherwise.
        """
        values = values.detach().reshape(-1).to("cpu", torch.float32)
        # A gradient of the wrong sign has its blocks upside down.
        blocks = self._blocks(values)
        blocks = blocks if len(blocks) else self._blocks(-values)
        runs = self._runs(blocks, len(values), hint)
        self.factor = float(values[blocks[:, 2]].median()) / PILOT if len(blocks) else None
        segments, at = [], 0
        for number, run in enumerate(runs):
            first = self._border(runs[number - 1], run)[1] if number else max(run.origin, 0)
            if number + 1 < len(runs):
                last = self._border(run, runs[number + 1])[0]
            else:
                last = self._last_end(values, run)
            self._fill(segments, values, at, first)
            segments.append(dict(param=run.name, offset=first - run.origin, len=last - first))
            at = last
        self._fill(segments, values, at, len(values))
        return segments

    def _runs(self, blocks, length, hint):
        """Pieces of parameters with the places of their first and last blocks, in order. Noise may make a
        block look like another one: where two pieces cannot both lie, the one with more blocks does."""
        runs = []
        # A block's parameter and its origin in one number: rows are far slower to sort.
        origins = blocks[:, 2] - blocks[:, 1]
        least, span = int(origins.min()) if len(blocks) else 0, length + max(self.sizes.values(), default=0) + 1
        pieces, of_piece = (blocks[:, 0] * span + origins - least).unique(return_inverse=True)
        for number, piece in enumerate(pieces.tolist()):
            starts = blocks[:, 2][of_piece == number]
            ends = int(starts.min()), int(starts.max()) + BLOCK
            runs.append(Run(self.order[piece // span], piece % span + least, len(starts), *ends))
        if hint is not None:
            # Something else has to be said by most of the blocks that there is room for.
            runs = [run for run in runs if 2 * run.votes * self.stamp.step(self.sizes[run.name]) >= length]
            votes = sum(it.votes for it in runs if (it.name, it.origin) == (hint[0], -hint[1]))
            runs.append(Run(hint[0], -hint[1], 0.5 + votes, 0, length))
        placed = []
        for run in sorted(runs, key=lambda run: -run.votes):
            if all(run.last <= other.first or run.first >= other.last for other in placed):
                placed.append(run)
        return sorted(placed, key=lambda run: run.first)

    def _border(self, run, after):
        """Places at which a piece ends and the next one begins: ends of shards or of parameters."""
        ends = [end for end in self._ends(run) if end <= after.first]
        starts = [after.origin + first for first, _ in self._shards(after.name)]
        starts = [start for start in starts if run.last <= start <= after.first]
        pairs = [(start - end, end, start) for end in ends for start in starts if end <= start]
        if pairs:
            # Padding is as short as it can be.
            return min(pairs)[1:]
        start = max(starts, default=after.first)
        return start, start

    def _ends(self, run):
        """Places at which a piece may end, in order."""
        return sorted(end for end in {run.origin + last for _, last in self._shards(run.name)} if end >= run.last)

    def _last_end(self, values, run):
        """Place at which the last piece ends: the first end behind which all is known, or all there is."""
        for end in self._ends(run):
            rest = [dict(param=run.name, offset=0, len=0)]
            self._fill(rest, values, min(end, len(values)), len(values))
            if all(it["param"] or not values[end : end + it["len"]].any() for it in rest):
                return min(end, len(values))
        return min(run.origin + self.sizes[run.name], len(values))

    def _shards(self, name):
        size = self.sizes[name]
        return [(0, size)] + self.stamp.shards(size, self.rows[name])

    def _blocks(self, values):
        """All blocks of a tensor in order, a row each: place of the parameter in the model's order, offset
        in the parameter, and place in the tensor."""
        blocks = [torch.zeros(0, 3, dtype=torch.int64)]
        for first in range(0, len(values), CHUNK):
            part = values[first : first + CHUNK + BLOCK - 1]
            if len(part) < BLOCK:
                break
            # Half of all codes are negative, and few are as large as an address.
            found = self._blocks_below(part, first, PROMINENT * float(part.min()))
            known = int(self.steps[found[:, 0]].sum())
            blocks.append(found if known >= MOST * len(part) else self._blocks_below(part, first, 0.0))
        return torch.cat(blocks)

    def _blocks_below(self, part, first, limit):
        """Blocks of a part of a tensor, `first` elements from its beginning, whose first elements are less
        than a limit."""
        starts = (part[: len(part) - BLOCK + 1] < limit).nonzero().reshape(-1)
        starts = starts[starts < CHUNK]
        window = part[starts[:, None] + torch.arange(BLOCK)]
        digits = window[:, 1:] / (window[:, :1] / PILOT) - 1
        whole = digits.round()
        readable = ((digits - whole).abs() < SLACK).all(1) & ((whole >= 0) & (whole <= 15)).all(1)
        whole, starts = whole[readable].to(torch.int64), starts[readable]
        powers = 16 ** torch.arange(NAME_DIGITS)
        keys = (whole[:, :NAME_DIGITS] * powers).sum(1)
        numbers = (whole[:, NAME_DIGITS:] * powers[:NUMBER_DIGITS]).sum(1)
        at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        places = self.of_key[at]
        offsets = numbers * self.steps[places]
        known = (self.keys[at] == keys) & (offsets + BLOCK <= self.lengths[places])
        return torch.stack([places, offsets, starts + first], 1)[known]

    def _fill(self, segments, values, at, end):
        """Segments of a gap between known parameters: pieces without a whole block, in the model's order,
        and padding."""
        after = next((it["param"] for it in reversed(segments) if it["param"] is not None), None)
        names = self.order[self.place[after] + 1 if after is not None else 0 :]
        while at < end:
            piece = None
            if values[at] != 0:
                piece = next((it for it in (self._piece(values[at:end], name) for name in names) if it), None)
            if piece is None:
                _append_unknown(segments, 1)
                at += 1
                continue
            segments.append(piece)
            names = names[names.index(piece["param"]) + 1 :]
            at += piece["len"]

    def _piece(self, values, name):
        """The largest shard of a small parameter that the values begin with; None if there is none."""
        size = self.sizes[name]
        if not self.stamp.is_small(size):
            return None
        if name not in self.small:
            self.small[name] = self.stamp.values(name, size).to(torch.float32)
        for first, last in self._shards(name):
            expected = self.small[name][first:last][: len(values)]
            held = values[: len(expected)]
            factor = self.factor or held[0] / expected[0]
            if bool(((held / factor - expected).abs() < SLACK).all()):
                return dict(param=name, offset=first, len=len(expected))
        return None


def _append_unknown(segments, length):
    if segments and segments[-1]["param"] is None:
        segments[-1]["len"] += length
    else:
        segments.append(dict(param=None, offset=0, len=length))
