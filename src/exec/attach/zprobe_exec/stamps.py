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
CHUNK = 1 << 20


def key(name):
    """The 32 bits that stand for a parameter's name."""
    return zlib.crc32(name.encode())


class Stamp:
    """The blocks of all parameters of a model."""

    def __init__(self, gap):
        self.stride = BLOCK + gap

    def is_small(self, size):
        """True for a parameter that holds nothing but its address."""
        return size < 2 * BLOCK

    def values(self, name, size):
        """The elements of a parameter's blocks, as int8, and 0 elsewhere."""
        element = torch.arange(size, dtype=torch.int64)
        stride = BLOCK if self.is_small(size) else self.stride
        number, place = element // stride, element % stride
        digit = (place - 1).clamp(0, BLOCK - 2)
        shift = 4 * torch.where(digit < NAME_DIGITS, digit, digit - NAME_DIGITS)
        word = torch.where(digit < NAME_DIGITS, torch.full_like(number, key(name)), number)
        values = ((word >> shift) & 15) + 1
        values = torch.where(place == 0, torch.full_like(values, PILOT), values)
        return torch.where(place < BLOCK, values, torch.zeros_like(values)).to(torch.int8)

    def free(self, size, first, end):
        """Runs (first, end) of free elements between two places of a parameter."""
        if self.is_small(size):
            return []
        runs = []
        for start in range(first // self.stride * self.stride, end, self.stride):
            run = (max(first, start + BLOCK), min(end, start + self.stride, size))
            if run[0] < run[1]:
                runs.append(run)
        return runs


class Reader:
    """Recognises the parameters of a model in the tensors of an optimizer."""

    def __init__(self, stamp, sizes):
        """`sizes`: number of elements of each parameter, by name, in the order of the model."""
        self.stamp, self.sizes = stamp, sizes
        self.order = list(sizes)
        self.place = {name: place for place, name in enumerate(self.order)}
        pairs = sorted((key(name), place) for place, name in enumerate(self.order))
        self.keys = torch.tensor([pair[0] for pair in pairs] or [0], dtype=torch.int64)
        self.of_key = torch.tensor([pair[1] for pair in pairs] or [0], dtype=torch.int64)
        self.small = {}

    def locate(self, values, hint=None):
        """Segments (param, offset, len) of a flat tensor, in order; param None for elements of none.

        `hint` is the place, (name, offset), at which the whole tensor probably lies: it is followed
        unless the blocks say otherwise.
        """
        values = values.detach().reshape(-1).to("cpu", torch.float32)
        if bool((values < 0).sum() * 2 > len(values)) and bool((values.abs() > 0).any()):
            blocks = self._blocks(values) or self._blocks(-values)
        else:
            blocks = self._blocks(values)
        if hint is not None and all(name == hint[0] and at - start == hint[1] for name, at, start in blocks):
            return [dict(param=hint[0], offset=hint[1], len=len(values))]
        segments, end = [], 0
        for name, offset, start in blocks:
            if segments and segments[-1]["param"] == name and start < end:
                continue
            # The parameter begins and ends where its blocks say.
            first = max(start - offset, end)
            last = min(start - offset + self.sizes[name], len(values))
            following = [at for other, _, at in blocks if at > start and other != name]
            last = min([last] + following)
            self._fill(segments, values, end, first)
            segments.append(dict(param=name, offset=offset + first - start, len=last - first))
            end = last
        self._fill(segments, values, end, len(values))
        return segments

    def _blocks(self, values):
        """All blocks of a tensor in order: name, offset in the parameter, place in the tensor."""
        blocks = []
        for first in range(0, len(values), CHUNK):
            part = values[first : first + CHUNK + BLOCK - 1]
            if len(part) < BLOCK:
                break
            starts = (part[: len(part) - BLOCK + 1] < 0).nonzero().reshape(-1)
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
            known = self.keys[at] == keys
            places = self.of_key[at][known].tolist()
            for place, number, start in zip(places, numbers[known].tolist(), (starts[known] + first).tolist()):
                name = self.order[place]
                stride = BLOCK if self.stamp.is_small(self.sizes[name]) else self.stamp.stride
                if number * stride + BLOCK <= self.sizes[name]:
                    blocks.append((name, number * stride, start))
        return blocks

    def _fill(self, segments, values, at, end):
        """Segments of a gap between known parameters: small parameters in the model's order, and
        padding."""
        after = segments[-1]["param"] if segments else None
        names = self.order[self.place[after] + 1 if after is not None else 0 :]
        while at < end:
            name = next((it for it in names if self._is_small_at(values, at, end, it)), None)
            if name is None:
                _append_unknown(segments, 1)
                at += 1
                continue
            size = min(self.sizes[name], end - at)
            segments.append(dict(param=name, offset=0, len=size))
            names = names[names.index(name) + 1 :]
            at += size

    def _is_small_at(self, values, at, end, name):
        """True if a small parameter lies at a place, or its first part at the end of the tensor."""
        size = self.sizes[name]
        if not self.stamp.is_small(size) or (at + size > end and end < len(values)):
            return False
        if name not in self.small:
            self.small[name] = self.stamp.values(name, size).to(torch.float32)
        expected, held = self.small[name][: end - at], values[at : min(at + size, end)]
        factor = held[0] / expected[0]
        return bool(factor > 0) and bool(((held / factor - expected).abs() < SLACK).all())


def _append_unknown(segments, length):
    if segments and segments[-1]["param"] is None:
        segments[-1]["len"] += length
    else:
        segments.append(dict(param=None, offset=0, len=length))
