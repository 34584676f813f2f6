"""Recognises pieces of parameters that are too short to hold a whole address.

Every element of the first step's gradients is known in advance: the element belongs to a stamp, or is a sum of codes if
all gradients have the same weight. So a few elements show their place, if no other place has the same elements. If
several places fit, the order of the parameters decides; a piece without a clear place stays unread.
"""

import torch

# The largest distance of a digit from an integer: half of the distance between two digits.
SLACK = 0.5

# The largest error of a sum of codes, in contributions. Such sums are all even or all odd.
CODE_SLACK = 0.75

# The information in bits of a digit, and the least information of an element with codes. The first element of a block
# does not count as a digit, because the element is the same in every block.
DIGIT_BITS, CODE_BITS = 4, 1

# The bits that identify a piece at the place that the order of the parameters suggests. At another place the piece
# needs as many more bits as the number of a parameter has.
LIKELY = 8

# The number of consecutive unrecognised elements after which the rest of a gap is skipped.
STRANGE = 64

# The number of consecutive zeros that count as padding, because gradients hardly have as many by chance.
PADDING = 16


class Expected:
    """The expected value of each element of the first step's gradients, in units of the stamps."""

    def __init__(self, stamp, sizes, source, columns):
        """`source` has the codes, and `columns` are the numbers of the gradients that were computed so far."""
        self.stamp, self.sizes, self.source = stamp, sizes, source
        self.code_slack = CODE_SLACK / max(len(columns), 1)
        periods = [source.code.period(column, 0) for column in columns]
        self.sum = sum(periods, torch.zeros(source.code.length)) / max(len(columns), 1)
        # False if the sums of codes are not as expected: the weights or the number of the gradients differ.
        self.has_codes = True

    def of(self, name, first, end):
        """Three tensors about the elements of a parameter from `first` to `end`: the expected values, the largest
        allowed errors, and true for the elements of stamps."""
        stamps = self.stamp.values(name, self.sizes[name], first, end).to(torch.float32)
        is_stamp = stamps != 0
        if bool(is_stamp.all()):
            return stamps, torch.full((end - first,), SLACK), is_stamp
        start = self.source.starts.get(name, 0)
        elements = range(start + first, start + end)
        period = self.sum[torch.arange(elements.start, elements.stop) % len(self.sum)]
        values = torch.where(is_stamp, stamps, self.source.code.signs(elements) * period)
        slack = self.code_slack if self.has_codes else float("inf")
        return values, torch.where(is_stamp, SLACK, slack), is_stamp

    def agrees(self, held, name, first):
        """True if the values `held` are the expected elements of a parameter from element `first` on."""
        if not len(held):
            return True
        if first < 0 or first + len(held) > self.sizes[name]:
            return False
        values, slack, _ = self.of(name, first, first + len(held))
        return bool(((held - values).abs() <= slack).all())


class Text:
    """The text to search: all parts of parameters that can lie in a tensor without a whole address, one after the
    other."""

    def __init__(self, expected, shards):
        """`shards` has the parts (first, end) into which engines may cut each parameter, by name."""
        self.names, self.shards = list(shards), shards
        values, slacks, bits, numbers, offsets, starts, ends, lefts = [], [], [], [], [], [], [], []
        for number, name in enumerate(self.names):
            size, begins = expected.sizes[name], {first for first, _ in shards[name]}
            for first, end in expected.stamp.edges(size):
                known, slack, is_stamp = expected.of(name, first, end)
                values.append(known)
                slacks.append(slack)
                is_digit = is_stamp & (known > 0)
                bits.append(torch.where(is_digit, DIGIT_BITS, CODE_BITS if expected.has_codes else 0))
                numbers.append(torch.full((end - first,), number))
                offsets.append(torch.arange(first, end))
                starts.append(_marked(begins, first, end))
                ends.append(_marked({last - 1 for _, last in shards[name]}, first, end))
                lefts.append(torch.arange(end - first, 0, -1))
        self.values, self.slacks, self.bits = torch.cat(values), torch.cat(slacks), torch.cat(bits)
        self.numbers, self.offsets = torch.cat(numbers), torch.cat(offsets)
        self.starts, self.lefts = torch.cat(starts), torch.cat(lefts)
        # The number of ends of shards and parameters before each element.
        self.ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(ends).cumsum(0)])

    def places(self, held, is_anywhere):
        """The places of the text at which `held` may begin, each with the number of agreeing elements. The places are
        starts of parameters and shards, or all places if `is_anywhere`. Either all of `held` agrees, or the end of a
        shard or parameter lies among the agreeing elements."""
        alive = (held[0] - self.values).abs() <= self.slacks
        alive = (alive if is_anywhere else alive & self.starts).nonzero().reshape(-1)
        found = []
        for length in range(1, len(held) + 1):
            more = torch.zeros_like(alive, dtype=torch.bool)
            if length < len(held):
                inside = self.lefts[alive] > length
                ahead = torch.where(inside, alive + length, alive)
                more = inside & ((held[length] - self.values[ahead]).abs() <= self.slacks[ahead])
            over = alive[~more]
            if length < len(held):
                over = over[self.ends[over + length] > self.ends[over]]
            found += [(place, length) for place in over.tolist()]
            alive = alive[more]
            if not len(alive):
                break
        return found


class Candidate:
    """A piece of a parameter that may explain the elements of a gap."""

    def __init__(self, text, place, length):
        self.number, self.name = int(text.numbers[place]), text.names[int(text.numbers[place])]
        self.offset, self.length = int(text.offsets[place]), length
        self.bits = int(text.bits[place : place + length].sum())


class Shorts:
    """Recognises the pieces in the gaps of a tensor, where no whole address lies."""

    def __init__(self, expected, shards, starts):
        """`shards` has the parts (first, end) into which engines may cut each parameter, by name; `starts` has the
        starts of the parts that this rank probably holds."""
        self.expected, self.shards, self.starts = expected, shards, starts
        self.place = {name: number for number, name in enumerate(shards)}
        self.texts = {}

    def fill(self, segments, held, at, end, after=None):
        """Appends the segments of a gap, which lies from `at` to `end` between the last segment and the parameter
        `after`: pieces, padding, and unrecognised elements. `held` is the tensor in units of the stamps."""
        strange, first = 0, at
        while at < end:
            part = held[at:end]
            before = next((it["param"] for it in reversed(segments) if it["param"] is not None), None)
            is_last = end == len(held)
            found = None if strange > STRANGE else self._piece(part, at == 0, is_last, before, after)
            if found is None:
                strange += 1
                at = at + 1 if strange <= STRANGE else end
                continue
            append_unknown(segments, held[first:at])
            append(segments, dict(param=found.name, offset=found.offset, len=found.length))
            at, strange = at + found.length, 0
            first = at
        append_unknown(segments, held[first:end])

    def knows(self, held, at, end, before, after=None):
        """True if all elements of a gap, from `at` to `end` between the parameters `before` and `after`, are recognised
        or zero."""
        rest = [dict(param=before, offset=0, len=0)]
        self.fill(rest, held, at, end, after)
        for segment in rest:
            if segment["param"] is None and bool(held[at : at + segment["len"]].any()):
                return False
            at += segment["len"]
        return True

    def _piece(self, held, is_first, is_last, before, after):
        """The piece at the beginning of a gap; `None` if no piece is sure. The gap begins the tensor if `is_first`, and
        ends the tensor if `is_last`."""
        if not bool(held.any()):
            return None
        text, found = self._text(), []
        for start, agreeing in text.places(held, is_first):
            length = self._length(text, start, agreeing, is_last and agreeing == len(held))
            if length:
                found.append(Candidate(text, start, length))
        last, following = self.place.get(before), self.place.get(after, len(self.place))

        def is_sure(it):
            # The beginning of a tensor may hold the end of the parameter that precedes `after`.
            is_end = before is None and it.number + 1 == following and it.length == len(held)
            is_next = last is not None and it.number == last + 1 and it.offset in self.starts[it.name]
            is_between = is_next and it.number + 1 == following
            return is_between or it.bits >= LIKELY + (0 if is_end or is_next else len(self.place).bit_length())

        def rank(it):
            ahead = it.number - last - 1 if last is not None else following - it.number - 1
            return it.length < len(held), -it.length, it.offset not in self.starts[it.name], ahead % len(self.place)

        return min((it for it in found if is_sure(it)), key=rank, default=None)

    def _length(self, text, start, agreeing, is_cut):
        """The length of the piece that begins at place `start` of the text; 0 for no piece. The piece ends with a shard
        that begins at `start`, else with another shard or the parameter; if `is_cut`, the piece ends with the tensor.
        """
        if is_cut:
            return agreeing
        offset = int(text.offsets[start])
        shards = self.shards[text.names[int(text.numbers[start])]]
        lengths = [(first == offset, last - offset) for first, last in shards if 0 < last - offset <= agreeing]
        return max(lengths, default=(False, 0))[1]

    def _text(self):
        key = self.expected.has_codes
        if key not in self.texts:
            self.texts[key] = Text(self.expected, self.shards)
        return self.texts[key]


def _marked(places, first, end):
    """A mask of the elements of a parameter from `first` to `end`: true at the given places."""
    marked = torch.zeros(end - first, dtype=torch.bool)
    marked[[place - first for place in places if first <= place < end]] = True
    return marked


def append(segments, piece):
    """Appends a piece, or extends the last segment if the piece continues it."""
    last = segments[-1] if segments else None
    if last and last["param"] == piece["param"] and last["offset"] + last["len"] == piece["offset"]:
        last["len"] += piece["len"]
    else:
        segments.append(piece)


def append_unknown(segments, held):
    """Appends a segment of no parameter: padding, or unrecognised elements, which are marked as `unread`."""
    if not len(held):
        return
    # A few zeros are no padding, because they may be sums of codes.
    is_padding = len(held) >= PADDING and not bool(held.any())
    segments.append(dict(param=None, offset=0, len=len(held), **({} if is_padding else {"unread": True})))
