"""Address stamps: gradients from which the place of every element can be read.

A parameter begins with a block of 16 elements that holds an address, and another block follows after every `gap`
elements, which are free for codes. The first element of a block is -16. Each other element is a digit of the address
plus one, between 1 and 16. The address has 60 bits: 32 for the name of the parameter and 28 for the number of the
block. Both parts are mixed, so that a few digits distinguish blocks.

The first element shows where a block begins, and by which factor the block was multiplied. So a block is recognised
anywhere, in any dtype with 8 significant bits, after any averaging and scaling. A small parameter consists only of
blocks. Pieces without a whole block are recognised by their neighbours and by each of their elements (`gaps`).
"""

import zlib

import torch

from zprobe_exec.gaps import PADDING, SLACK, Shorts, append

BLOCK = 16
PILOT = -16
NAME_DIGITS, NUMBER_DIGITS = 8, 7
NAMES, NUMBERS = 1 << 4 * NAME_DIGITS, 1 << 4 * NUMBER_DIGITS

# Odd factors that spread a number over all its digits, and the inverse of the first factor.
SPREAD, SPREAD_NAME = 0x9E3779B, 0x85EBCA6B
GATHER = pow(SPREAD, -1, NUMBERS)

# The largest number of pieces that are checked for the expected sums of codes.
SEEN = 8

# The number of elements that are read at once.
CHUNK = 1 << 16

# The first elements of blocks are below this share of the least element around them, unless the parameters there were
# multiplied with different factors.
PROMINENT = 0.4

# The number of agreeing digits that is not a coincidence.
CHANCE = 4

# The share of the elements, or of the expected blocks, that recognised blocks have to account for.
MOST = 0.9


def key(name):
    """The 32-bit checksum that stands for the name of a parameter in addresses."""
    return zlib.crc32(name.encode())


def mixed(name, number):
    """The two parts of the address of a block, mixed with each other: the key of the parameter's name, and the number
    of the block (a tensor)."""
    number = (number * SPREAD) % NUMBERS ^ _of_name(name)
    return name ^ _of_number(number), number


def unmixed(name, number):
    """The key of the name and the number of the block from which `mixed` has made an address."""
    name = name ^ _of_number(number)
    return name, ((number ^ _of_name(name)) * GATHER) % NUMBERS


def _of_name(name):
    return (name * SPREAD >> 4) % NUMBERS


def _of_number(number):
    return (number * SPREAD_NAME) % NAMES


class Stamp:
    """The layout and the values of the address blocks in the parameters of a model."""

    def __init__(self, gap, world_size):
        self.stride, self.world_size = BLOCK + gap, world_size

    def is_small(self, size):
        """True for a parameter that is so small that it consists only of blocks, so that each rank's shard has a part
        of an address."""
        return size < 2 * self.stride * self.world_size

    def step(self, size):
        """The distance between the starts of two blocks, in a parameter of this size."""
        return BLOCK if self.is_small(size) else self.stride

    def shards(self, size, row):
        """The shards (first, end) into which engines may cut a parameter: equal parts of its rows, or of its
        elements. Longer shards come first."""
        parts = set()
        for length in self._lengths(size, row):
            parts.update((start, min(start + length, size)) for start in range(0, size, length))
        return sorted(parts, key=lambda part: (part[0] - part[1], part[0]))

    def starts(self, size, row, rank):
        """The places at which a rank's part of a parameter may begin, if the ranks hold the parts in their order."""
        return {0} | {rank * length for length in self._lengths(size, row)}

    def _lengths(self, size, row):
        return [-(-(size // unit) // self.world_size) * unit for unit in (row, 1)]

    def edges(self, size):
        """The parts (first, end) of a parameter of this size that can lie in a tensor without a whole block."""
        most = self.stride + BLOCK
        return [(0, size)] if self.is_small(size) or size <= 2 * most else [(0, BLOCK), (size - most, size)]

    def blocks(self, name, size, start=0, end=None):
        """The blocks of a parameter as int8, a block in each row: from number `start` to the block of the element
        before `end`."""
        last = -(-(size if end is None else end) // self.step(size))
        name, number = mixed(key(name), torch.arange(start, last, dtype=torch.int64)[:, None])
        blocks = torch.full((len(number), BLOCK), PILOT, dtype=torch.int8)
        blocks[:, 1 : 1 + NAME_DIGITS] = ((name >> 4 * torch.arange(NAME_DIGITS)) & 15) + 1
        blocks[:, 1 + NAME_DIGITS :] = ((number >> 4 * torch.arange(NUMBER_DIGITS)) & 15) + 1
        return blocks

    def put(self, blocks, values, unit):
        """Writes all blocks of a parameter, multiplied with `unit`, into `values`, which has all its elements."""
        step = self.step(len(values))
        whole = len(values) // step
        values[: whole * step].view(-1, step)[:, :BLOCK] = blocks[:whole].to(values.dtype) * unit
        rest = values[whole * step :][:BLOCK]
        rest.copy_(blocks[whole:].reshape(-1)[: len(rest)].to(values.dtype) * unit)

    def values(self, name, size, first=0, end=None):
        """The elements of a parameter from `first` to `end` as int8: digits in blocks, and 0 in the gaps."""
        step, end = self.step(size), size if end is None else end
        start = first // step
        blocks = self.blocks(name, size, start, end)
        values = torch.zeros(len(blocks), step, dtype=torch.int8)
        values[:, :BLOCK] = blocks
        return values.reshape(-1)[first - start * step : end - start * step]

    def free(self, size, first, end, most):
        """At most about `most` runs (first, end) of free elements, spread evenly between two places of a parameter."""
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
    """A piece of one parameter in a tensor, recognised by blocks at the right distances from each other."""

    def __init__(self, name, origin, votes, first, last):
        # `origin` is the place in the tensor at which the parameter's first element would lie.
        self.name, self.origin, self.votes = name, origin, votes
        self.first, self.last = first, last
        self.start = None  # The place in the tensor at which the piece begins; `None` until it is found.


class Reader:
    """Recognises the parameters of a model in the gradients of an optimizer's tensors."""

    def __init__(self, stamp, params, expected, rank):
        """`params` has the parameters by name, in the order of the model; `expected` has the expected elements."""
        self.stamp, self.expected = stamp, expected
        sizes = self.sizes = {name: param.numel for name, param in params.items()}
        self.rows = {name: max(it.numel // max(it.shape[0], 1), 1) if it.shape else 1 for name, it in params.items()}
        self.order = list(sizes)
        self.place = {name: place for place, name in enumerate(self.order)}
        pairs = sorted((key(name), place) for place, name in enumerate(self.order))
        self.keys = torch.tensor([pair[0] for pair in pairs] or [0], dtype=torch.int64)
        self.of_key = torch.tensor([pair[1] for pair in pairs] or [0], dtype=torch.int64)
        self.lengths = torch.tensor(list(sizes.values()) or [0], dtype=torch.int64)
        self.steps = torch.tensor([stamp.step(size) for size in sizes.values()] or [BLOCK], dtype=torch.int64)
        # The factor of the last tensor with a block, and the factors of all tensors with blocks, in the order of reading.
        self.factor, self.factors = None, []
        trainable = [name for name, it in params.items() if it.trainable]
        starts = {name: stamp.starts(sizes[name], self.rows[name], rank) for name in trainable}
        self.shorts = Shorts(expected, {name: self._shards(name) for name in trainable}, starts)

    def locate(self, values, hint=None):
        """The segments (param, offset, len) of a flat tensor, in order; `param` is `None` for elements of no parameter.

        `hint` is the place (name, offset) at which the whole tensor probably lies in a parameter. The hint is followed
        unless the blocks contradict it.
        """
        values = values.detach().reshape(-1).to("cpu", torch.float32)
        run = self._run_at(values, *hint) if hint is not None else None
        runs = [run] if run is not None else self._search(values, hint)
        if self.factor is None:
            return self._of_runs(runs, len(values))
        held = values / self.factor
        self.expected.has_codes = self._has_codes(held, runs)
        segments, at = [], 0
        for number, run in enumerate(runs):
            if not number:
                run.start = self._first_start(held, run)
            if number + 1 < len(runs):
                end, runs[number + 1].start = self._border(held, run, runs[number + 1])
            else:
                end = self._last_end(held, run)
            self.shorts.fill(segments, held, at, run.start, run.name)
            append(segments, dict(param=run.name, offset=run.start - run.origin, len=end - run.start))
            at = end
        self.shorts.fill(segments, held, at, len(held))
        return segments

    def _search(self, values, hint):
        """The pieces of a tensor as runs, found by a search for blocks."""
        # In a gradient with the wrong sign the blocks have the wrong sign, too.
        blocks = self._blocks(values)
        blocks = blocks if len(blocks) else self._blocks(-values)
        if len(blocks):
            self._see_factor(values[blocks[:, 2]])
        return self._runs(blocks, len(values), hint)

    def _see_factor(self, pilots):
        self.factor = float(pilots.median()) / PILOT
        self.factors.append(self.factor)

    def _of_runs(self, runs, length):
        """The segments of a tensor without any block: the hinted piece, or a segment that is marked as `unread`."""
        if runs:
            return [dict(param=run.name, offset=-run.origin, len=length) for run in runs]
        return [dict(param=None, offset=0, len=length, unread=True)]

    def _has_codes(self, held, runs):
        """True if the elements after the first block of a piece are the expected sums of codes, in at least half of the
        checked pieces."""
        self.expected.has_codes = True
        free = [it for it in runs if not self.stamp.is_small(self.sizes[it.name]) and it.votes >= 2][:SEEN]
        agreeing = sum(self._agrees(held, it, it.first, it.first + self.stamp.stride) for it in free)
        return 2 * agreeing >= len(free)

    def _agrees(self, held, run, start, end):
        """True if the elements of a tensor from `start` to `end` are the expected elements of a run."""
        return self.expected.agrees(held[start:end], run.name, start - run.origin)

    def _runs(self, blocks, length, hint):
        """The pieces of parameters as runs, in order. Noise may make a block look like another block: of two pieces
        that overlap, only the piece with more blocks is kept."""
        runs = []
        # Each block's parameter and origin are packed into one number, because sorting rows is far slower.
        origins = blocks[:, 2] - blocks[:, 1]
        least, span = int(origins.min()) if len(blocks) else 0, length + max(self.sizes.values(), default=0) + 1
        pieces, of_piece = (blocks[:, 0] * span + origins - least).unique(return_inverse=True)
        for number, piece in enumerate(pieces.tolist()):
            starts = blocks[:, 2][of_piece == number]
            ends = int(starts.min()), int(starts.max()) + BLOCK
            runs.append(Run(self.order[piece // span], piece % span + least, len(starts), *ends))
        if hint is not None:
            # Another piece wins over the hint only with at least half of the blocks that the tensor has room for.
            runs = [run for run in runs if 2 * run.votes * self.stamp.step(self.sizes[run.name]) >= length]
            votes = sum(it.votes for it in runs if (it.name, it.origin) == (hint[0], -hint[1]))
            runs.append(Run(hint[0], -hint[1], 0.5 + votes, 0, length))
        placed = []
        for run in sorted(runs, key=lambda run: -run.votes):
            if all(run.last <= other.first or run.first >= other.last for other in placed):
                placed.append(run)
        return sorted(placed, key=lambda run: run.first)

    def _first_start(self, held, run):
        """The place in the tensor at which its first piece begins."""
        starts = {max(run.origin, 0)} | {run.origin + first for first, _ in self._shards(run.name)}
        starts = sorted(start for start in starts if 0 <= start < run.first + CHANCE)
        return next((start for start in starts if self._agrees(held, run, start, run.first)), starts[0])

    def _border(self, held, run, after):
        """The place at which a piece ends and the place at which the next piece begins: borders of shards or of
        parameters."""
        ends = [end for end in self._ends(run) if end <= after.first]
        starts = [after.origin + first for first, _ in self._shards(after.name)]
        # The first digits of a block may be those of the preceding piece, by chance.
        pairs = [(end, start) for end in ends for start in starts if end <= start < after.first + CHANCE]
        # The shortest padding is preferred.
        pairs.sort(key=lambda pair: (pair[1] - pair[0], pair[0]))
        right = [
            (end, start)
            for end, start in pairs
            if self._agrees(held, run, run.last, end) and self._agrees(held, after, start, after.first)
        ]
        whole = self._whole_ends(run)
        right.sort(key=lambda pair: pair[0] not in whole)
        for end, start in right:
            if self.shorts.knows(held, end, start, run.name, after.name):
                return end, start
        if pairs:
            return (right or pairs)[0]
        start = max((start for start in starts if run.last <= start <= after.first), default=after.first)
        return start, start

    def _whole_ends(self, run):
        """The places in the tensor at which those shards end that begin at the start of the run."""
        return {run.origin + last for first, last in self._shards(run.name) if run.origin + first == run.start}

    def _ends(self, run):
        """The places in the tensor at which a piece may end, in order."""
        ends = {run.origin + last for _, last in self._shards(run.name)}
        # The last digits of the last block may be those of the following piece, by chance.
        whole = {end for end in self._whole_ends(run) if end > run.last - CHANCE}
        return sorted({end for end in ends if end >= run.last} | whole)

    def _last_end(self, held, run):
        """The place at which the last piece ends: an end after which all elements are recognised, preferably the end of
        a shard or of the tensor. Without such an end, the result is the last end up to which the elements agree with
        the piece."""
        ends = sorted({min(end, len(held)) for end in self._ends(run)})
        ends = [end for end in ends if self._agrees(held, run, run.last, end)]
        likely = self._whole_ends(run) | {len(held)}
        for end in sorted(ends, key=lambda end: end not in likely):
            # The zeros are sums of codes: no engine pads that much in the middle of a parameter.
            if len(held) in ends and len(held) - end >= PADDING and not bool(held[end:].any()):
                return len(held)
            if self.shorts.knows(held, end, len(held), run.name):
                return end
        return max(ends, default=min(run.origin + self.sizes[run.name], len(held)))

    def _shards(self, name):
        size = self.sizes[name]
        return [(0, size)] + self.stamp.shards(size, self.rows[name])

    def _run_at(self, values, name, offset):
        """The tensor as a run at `offset` of the parameter `name`, if nearly all blocks agree; else `None`. This
        comparison is faster than a search."""
        size = self.sizes.get(name, 0)
        step = self.stamp.step(size)
        first, end = -(-offset // step), (offset + len(values) - BLOCK) // step + 1
        votes, pilots = 0, []
        for number in range(first, end, CHUNK // BLOCK):
            last = min(number + CHUNK // BLOCK, end)
            wanted = self.stamp.values(name, size, number * step, (last - 1) * step + BLOCK)
            held = values[number * step - offset :][: len(wanted)]
            wanted, held = (it.unfold(0, BLOCK, step) for it in (wanted, held))
            pilots.append(held[:, 0])
            votes += int(((held[:, 1:] / (held[:, :1] / PILOT) - wanted[:, 1:]).abs() < SLACK).all(1).sum())
        if not votes or votes < MOST * (end - first):
            return None
        self._see_factor(torch.cat(pilots))
        return Run(name, -offset, votes, 0, len(values))

    def _blocks(self, values):
        """All blocks of a tensor in order, a block in each row: the number of the parameter in the model's order, the
        offset in the parameter, and the place in the tensor."""
        blocks = [torch.zeros(0, 3, dtype=torch.int64)]
        for first in range(0, len(values), CHUNK):
            part = values[first : first + CHUNK + BLOCK - 1]
            if len(part) < BLOCK:
                break
            # The limit saves time: half of all codes are negative, but few are as large as the first element of blocks.
            found = self._blocks_below(part, first, PROMINENT * float(part.min()))
            known = int(self.steps[found[:, 0]].sum())
            blocks.append(found if known >= MOST * len(part) else self._blocks_below(part, first, 0.0))
        return torch.cat(blocks)

    def _blocks_below(self, part, first, limit):
        """The blocks whose first elements are less than `limit`, in a part of a tensor that starts at element
        `first`."""
        starts = (part[: len(part) - BLOCK + 1] < limit).nonzero().reshape(-1)
        starts = starts[starts < CHUNK]
        window = part[starts[:, None] + torch.arange(BLOCK)]
        digits = window[:, 1:] / (window[:, :1] / PILOT) - 1
        whole = digits.round()
        readable = ((digits - whole).abs() < SLACK).all(1) & ((whole >= 0) & (whole <= 15)).all(1)
        whole, starts = whole[readable].to(torch.int64), starts[readable]
        powers = 16 ** torch.arange(NAME_DIGITS)
        names = (whole[:, :NAME_DIGITS] * powers).sum(1)
        keys, numbers = unmixed(names, (whole[:, NAME_DIGITS:] * powers[:NUMBER_DIGITS]).sum(1))
        at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        places = self.of_key[at]
        offsets = numbers * self.steps[places]
        known = (self.keys[at] == keys) & (offsets + BLOCK <= self.lengths[places])
        return torch.stack([places, offsets, starts + first], 1)[known]
