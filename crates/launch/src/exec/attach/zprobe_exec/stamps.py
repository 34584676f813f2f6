"""Address stamps: gradients from which the place of every element can be read.

A parameter has a block of 16 elements with an address at its beginning, and again after every `gap`
elements that are free for other use. The first element of a block is -16; each of the others is a digit
of the address plus one, so that it lies between 1 and 16. The address is a number of 60 bits: 32 for the
name of the parameter and 28 for the number of the block, mixed up with each other, so that a few digits
tell blocks apart. The first element says with which factor the
block was multiplied, and where it begins. So a block is recognised wherever it lies, in any dtype with
8 significant bits, whatever it was averaged and scaled with. A parameter that has no room for a block
and 16 elements more holds nothing but its address. Pieces without a whole block are found by what lies
around them, and by each of their elements (`gaps`).
"""

import zlib

import torch

from zprobe_exec.gaps import PADDING, SLACK, Shorts, append

BLOCK = 16
PILOT = -16
NAME_DIGITS, NUMBER_DIGITS = 8, 7
NAMES, NUMBERS = 1 << 4 * NAME_DIGITS, 1 << 4 * NUMBER_DIGITS

# Odd factors, by which numbers are spread over all their digits, and what takes one of them back.
SPREAD, SPREAD_NAME = 0x9E3779B, 0x85EBCA6B
GATHER = pow(SPREAD, -1, NUMBERS)

# Number of pieces that show whether codes are as they should be.
SEEN = 8

# Number of elements that are read at once.
CHUNK = 1 << 16

# Share of the least element of some that the first elements of their blocks have, unless parameters there
# were multiplied with different factors.
PROMINENT = 0.4

# Digits that do not agree by chance.
CHANCE = 4

# Share of some elements that the blocks found there have to account for.
MOST = 0.9


def key(name):
    """The 32 bits that stand for a parameter's name."""
    return zlib.crc32(name.encode())


def mixed(name, number):
    """The two parts of the address of a block: those of its parameter's name and of its number (a tensor), each
    changed by the other."""
    number = (number * SPREAD) % NUMBERS ^ _of_name(name)
    return name ^ _of_number(number), number


def unmixed(name, number):
    """What `mixed` has made the two parts of an address of."""
    name = name ^ _of_number(number)
    return name, ((number ^ _of_name(name)) * GATHER) % NUMBERS


def _of_name(name):
    return (name * SPREAD >> 4) % NUMBERS


def _of_number(number):
    return (number * SPREAD_NAME) % NAMES


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
        for length in self._lengths(size, row):
            parts.update((start, min(start + length, size)) for start in range(0, size, length))
        return sorted(parts, key=lambda part: (part[0] - part[1], part[0]))

    def starts(self, size, row, rank):
        """Places at which the parts of a parameter begin that a rank has where the parts go by the ranks' order."""
        return {0} | {rank * length for length in self._lengths(size, row)}

    def _lengths(self, size, row):
        return [-(-(size // unit) // self.world_size) * unit for unit in (row, 1)]

    def edges(self, size):
        """The parts (first, end) of a parameter of this size that may lie in a tensor without a whole block."""
        most = self.stride + BLOCK
        return [(0, size)] if self.is_small(size) or size <= 2 * most else [(0, BLOCK), (size - most, size)]

    def blocks(self, name, size, start=0, end=None):
        """The blocks of a parameter from number `start` on to that of the element before `end`, as int8: a row each."""
        last = -(-(size if end is None else end) // self.step(size))
        name, number = mixed(key(name), torch.arange(start, last, dtype=torch.int64)[:, None])
        blocks = torch.full((len(number), BLOCK), PILOT, dtype=torch.int8)
        blocks[:, 1 : 1 + NAME_DIGITS] = ((name >> 4 * torch.arange(NAME_DIGITS)) & 15) + 1
        blocks[:, 1 + NAME_DIGITS :] = ((number >> 4 * torch.arange(NUMBER_DIGITS)) & 15) + 1
        return blocks

    def put(self, blocks, values, unit):
        """Puts all blocks of a parameter, in multiples of a unit, into its elements."""
        step = self.step(len(values))
        whole = len(values) // step
        values[: whole * step].view(-1, step)[:, :BLOCK] = blocks[:whole].to(values.dtype) * unit
        rest = values[whole * step :][:BLOCK]
        rest.copy_(blocks[whole:].reshape(-1)[: len(rest)].to(values.dtype) * unit)

    def values(self, name, size, first=0, end=None):
        """The elements of a parameter's blocks from `first` to `end`, as int8, and 0 elsewhere."""
        step, end = self.step(size), size if end is None else end
        start = first // step
        blocks = self.blocks(name, size, start, end)
        values = torch.zeros(len(blocks), step, dtype=torch.int8)
        values[:, :BLOCK] = blocks
        return values.reshape(-1)[first - start * step : end - start * step]

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
        self.start = None  # Place at which the piece begins; known once it is looked for.


class Reader:
    """Recognises the parameters of a model in the tensors of an optimizer."""

    def __init__(self, stamp, params, expected, rank):
        """`params`: the parameters by name, in the order of the model; `expected`: what their elements are."""
        self.stamp, self.expected, self.factor = stamp, expected, None
        sizes = self.sizes = {name: param.numel for name, param in params.items()}
        self.rows = {name: max(it.numel // max(it.shape[0], 1), 1) if it.shape else 1 for name, it in params.items()}
        self.order = list(sizes)
        self.place = {name: place for place, name in enumerate(self.order)}
        pairs = sorted((key(name), place) for place, name in enumerate(self.order))
        self.keys = torch.tensor([pair[0] for pair in pairs] or [0], dtype=torch.int64)
        self.of_key = torch.tensor([pair[1] for pair in pairs] or [0], dtype=torch.int64)
        self.lengths = torch.tensor(list(sizes.values()) or [0], dtype=torch.int64)
        self.steps = torch.tensor([stamp.step(size) for size in sizes.values()] or [BLOCK], dtype=torch.int64)
        self.factor = None
        trainable = [name for name, it in params.items() if it.trainable]
        starts = {name: stamp.starts(sizes[name], self.rows[name], rank) for name in trainable}
        self.shorts = Shorts(expected, {name: self._shards(name) for name in trainable}, starts)

    def locate(self, values, hint=None):
        """Segments (param, offset, len) of a flat tensor, in order; param None for elements of none.

        `hint` is the place, (name, offset), at which the whole tensor probably lies: it is followed
        unless the blocks say otherwise.
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
        """The pieces of a tensor, found by their blocks."""
        # A gradient of the wrong sign has its blocks upside down.
        blocks = self._blocks(values)
        blocks = blocks if len(blocks) else self._blocks(-values)
        if len(blocks):
            self.factor = float(values[blocks[:, 2]].median()) / PILOT
        return self._runs(blocks, len(values), hint)

    def _of_runs(self, runs, length):
        """The segments of a tensor without any block: the hint, if there was one."""
        if runs:
            return [dict(param=run.name, offset=-run.origin, len=length) for run in runs]
        return [dict(param=None, offset=0, len=length, unread=True)]

    def _has_codes(self, held, runs):
        """True unless the elements behind the first blocks of most pieces are not the sums of codes that they should
        be."""
        self.expected.has_codes = True
        free = [it for it in runs if not self.stamp.is_small(self.sizes[it.name]) and it.votes >= 2][:SEEN]
        agreeing = sum(self._agrees(held, it, it.first, it.first + self.stamp.stride) for it in free)
        return 2 * agreeing >= len(free)

    def _agrees(self, held, run, start, end):
        """True if the elements of a tensor between two places are those that a run has there."""
        return self.expected.agrees(held[start:end], run.name, start - run.origin)

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

    def _first_start(self, held, run):
        """Place at which the first piece of a tensor begins."""
        starts = {max(run.origin, 0)} | {run.origin + first for first, _ in self._shards(run.name)}
        starts = sorted(start for start in starts if 0 <= start < run.first + CHANCE)
        return next((start for start in starts if self._agrees(held, run, start, run.first)), starts[0])

    def _border(self, held, run, after):
        """Places at which a piece ends and the next one begins: ends of shards or of parameters."""
        ends = [end for end in self._ends(run) if end <= after.first]
        starts = [after.origin + first for first, _ in self._shards(after.name)]
        # The first digits of its first block may be those of something else, by chance.
        pairs = [(end, start) for end in ends for start in starts if end <= start < after.first + CHANCE]
        # Padding is as short as it can be.
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
        """Places at which the shards end that begin where a piece does."""
        return {run.origin + last for first, last in self._shards(run.name) if run.origin + first == run.start}

    def _ends(self, run):
        """Places at which a piece may end, in order."""
        ends = {run.origin + last for _, last in self._shards(run.name)}
        # The last digits of its last block may be those of something else, by chance.
        whole = {end for end in self._whole_ends(run) if end > run.last - CHANCE}
        return sorted({end for end in ends if end >= run.last} | whole)

    def _last_end(self, held, run):
        """Place at which the last piece ends: the first end behind which all is known, shards that begin where it does
        and the end of the tensor before others; or the last end up to which it is the piece."""
        ends = sorted({min(end, len(held)) for end in self._ends(run)})
        ends = [end for end in ends if self._agrees(held, run, run.last, end)]
        likely = self._whole_ends(run) | {len(held)}
        for end in sorted(ends, key=lambda end: end not in likely):
            # No engine pads that much in the middle of a parameter: sums of codes may be 0, too.
            if len(held) in ends and len(held) - end >= PADDING and not bool(held[end:].any()):
                return len(held)
            if self.shorts.knows(held, end, len(held), run.name):
                return end
        return max(ends, default=min(run.origin + self.sizes[run.name], len(held)))

    def _shards(self, name):
        size = self.sizes[name]
        return [(0, size)] + self.stamp.shards(size, self.rows[name])

    def _run_at(self, values, name, offset):
        """The piece that a tensor is if it lies at an offset in a parameter, recognised by nearly all of its blocks;
        None if it does not lie there. Comparing takes less time than a search."""
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
        self.factor = float(torch.cat(pilots).median()) / PILOT
        return Run(name, -offset, votes, 0, len(values))

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
        names = (whole[:, :NAME_DIGITS] * powers).sum(1)
        keys, numbers = unmixed(names, (whole[:, NAME_DIGITS:] * powers[:NUMBER_DIGITS]).sum(1))
        at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        places = self.of_key[at]
        offsets = numbers * self.steps[places]
        known = (self.keys[at] == keys) & (offsets + BLOCK <= self.lengths[places])
        return torch.stack([places, offsets, starts + first], 1)[known]
