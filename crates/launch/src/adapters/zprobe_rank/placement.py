"""Recognises the parameters in a fragment (a tensor of the optimizer) by the fragment's content.

Engines flatten, reorder, pad and shard parameters, each release in its own way. Before the first step a fragment holds
starting values. The starting values of the model are chosen so that each run of them occurs only once, and the content
of a fragment shows where its elements belong. A piece that is too short to be recognised is placed after its
neighbour, the preceding parameter in the model's order.
"""

import torch

# The number of elements that make a run of starting values unique: each element has one of 16 values.
UNMISTAKABLE = 16

# The least number of agreeing elements that does not count as a coincidence if another piece also fits.
CHANCE = 4

# The number of consecutive places without a recognised piece, after which the rest of a fragment is skipped.
STRANGE = 256

# The number of elements that are compared at once.
CHUNK = 1 << 16


class Placement:
    """Finds the parameters in fragments by runs of the model's starting values."""

    def __init__(self, tensors, rank, world_size):
        """`tensors` has the starting values of each trainable parameter by index, in the model's order."""
        self.params = {index: _words(tensor) for index, tensor in tensors.items()}
        self.order = sorted(self.params)
        self.has_zeros = any(bool((words == 0).any()) for words in self.params.values())
        self.world_size = world_size
        self.shards = {index: _shards(tensor, rank, world_size) for index, tensor in tensors.items()}

    def locate(self, tensor, hint=None):
        """The segments (param, offset, len) of a flat fragment; `param` is `None` where no parameter is recognised.

        `hint`, a tuple (param, runs, following), helps with pieces of too few elements to be recognised. `runs` are
        pairs (offset, len) of consecutive elements. The hint is followed if the fragment consists of these runs of the
        parameter, or if it holds the parameter from the offset of the first run on. `following` are the parameters that
        the engine puts next, which are preferred where a piece fits several parameters. If `following` is `None`, the
        fragment is the parameter itself, whatever the content.
        """
        if hint is not None and hint[2] is None:
            return [dict(param=hint[0], offset=0, len=tensor.numel())]
        words = _words(tensor)
        if hint is not None and self._consists_of(words, hint[0], hint[1]):
            return [dict(param=hint[0], offset=offset, len=length) for offset, length in hint[1]]
        hinted = self._hinted(words, hint)
        held = [] if hint is None else [hint[0], *hint[2]]
        if hinted is not None and hinted["len"] == len(words):
            return [hinted]
        whole = self._whole(words)
        if whole is not None:
            return [whole]
        orders = [[index for index in held if index in self.params]]
        orders += [self.order[first:] for first in range(len(self.order))]
        segments = next((it for it in (self._slots(words, order) for order in orders) if it is not None), None)
        if segments is not None:
            return segments
        segments, at, before, strange = [], 0, None, 0
        if hinted is not None:
            segments, at, before = [hinted], hinted["len"], hinted["param"]
        while at < len(words):
            padding = self._padding(words, at)
            piece = None if padding else self._unmistakable(words, at) or self._neighbour(words, at, before, held)
            if piece is not None:
                segments.append(piece)
                before, strange = piece["param"], 0
                at += piece["len"]
                continue
            strange += 0 if padding else 1
            length = padding or (_equal(words, at) if strange < STRANGE else len(words) - at)
            _append_unknown(segments, length)
            at += length
        return segments

    def _consists_of(self, words, index, runs):
        """True if the fragment has these runs of a parameter's elements, one after the other, and nothing else."""
        if index not in self.params or len(words) != sum(length for _, length in runs):
            return False
        param = self.params[index]
        return torch.equal(words, torch.cat([param[offset : offset + length] for offset, length in runs]))

    def _hinted(self, words, hint):
        """The segment of the hinted parameter from the hinted offset on; `None` if the fragment does not begin with
        this segment."""
        index, runs = (None, []) if hint is None else hint[:2]
        if index not in self.params or not runs:
            return None
        offset = runs[0][0]
        piece = self._piece(words, 0, index, offset)
        is_rest = piece["len"] > 0 and piece["len"] == min(len(self.params[index]) - offset, len(words))
        return piece if is_rest else None

    def _whole(self, words):
        """The fragment as one whole parameter, a stronger match than a shard of a few elements; `None` if no parameter
        fits.

        The values may have been rounded or decayed: DeepSpeed's FP16_UnfusedOptimizer takes a step with gradients of
        zero in its constructor.
        """
        for index in self.order:
            param = self.params[index]
            if len(param) == len(words) and torch.allclose(param, words, rtol=2**-7, atol=0):
                return dict(param=index, offset=0, len=len(words))
        return None

    def _slots(self, words, order):
        """The fragment as this rank's shards of the first parameters of `order`, each shard padded to its size on the
        first rank; `None` if the fragment has another layout. The padding may hold any values."""
        segments, at = [], 0
        for index in order:
            start, end = self.shards[index][-1]
            size = -(-len(self.params[index]) // self.world_size)
            if not torch.equal(self.params[index][start:end], words[at : at + end - start]):
                return None
            if end > start:
                segments.append(dict(param=index, offset=start, len=end - start))
            if size > end - start:
                _append_unknown(segments, size - (end - start))
            at += size
            # Slots that consist only of padding would fit anywhere.
            if at == len(words) and any(segment["param"] is not None for segment in segments):
                return segments
        return None

    def _padding(self, words, at):
        """The number of elements of padding from `at` on. Padding has values that no parameter has: NaN, with which
        memory is poisoned, and zeros unless a parameter holds a zero."""
        return _run(words, at, lambda part: part.isnan() if self.has_zeros else part.isnan() | (part == 0))

    def _candidates(self, window):
        """The places (param, offset) at which some parameter holds the elements of `window`."""
        for index in self.order:
            words = self.params[index]
            room = len(words) - len(window) + 1
            if len(window) < UNMISTAKABLE or room <= 0:
                continue
            places = (words[:room] == window[0]).nonzero().reshape(-1)
            for ahead in range(1, len(window)):
                places = places[words[places + ahead] == window[ahead]]
            for offset in places.tolist():
                yield index, offset

    def _unmistakable(self, words, at):
        """The longest piece of a parameter that begins at `at`; `None` unless the piece is long enough to be unique."""
        candidates = self._candidates(words[at : at + UNMISTAKABLE])
        pieces = [self._piece(words, at, index, offset) for index, offset in candidates]
        longest = max(pieces, key=lambda piece: piece["len"], default=None)
        return longest and self._without_chance(words, at, longest)

    def _without_chance(self, words, at, piece):
        """The piece, cut at the end of a shard if the few elements after the shard agree only by chance. The piece is
        cut if the next piece, which begins with these elements, is longer than they are."""
        index = piece["param"]
        for start, end in self.shards[index]:
            length = end - start
            beyond = piece["len"] - length
            if start == piece["offset"] and 0 < beyond < CHANCE:
                next_piece = self._neighbour(words, at + length, index)
                if next_piece is not None and next_piece["len"] > beyond:
                    return dict(piece, len=length)
        return piece

    def _neighbour(self, words, at, before, held=()):
        """A piece that is too short to be unique; `None` if no parameter fits. If several parameters fit, the parameter
        after `before` is chosen, in the order of `held` if `held` contains `before`, else in the order of the model.

        The piece is a whole parameter, a shard, a parameter that the end of the fragment cuts off, or at the beginning
        of the fragment the rest of a parameter.
        """
        following = [index for index in self.order if before is None or index > before]
        if before in held:
            following = [index for index in held[held.index(before) + 1 :] if index in self.params]
        order = following + [index for index in self.order if index not in following]
        if before is None and at == 0:
            endings = [self._ending(words, index) for index in order]
            endings += [self._ending_out_of_order(words, index) for index in order]
            ending = next((piece for piece in endings if piece is not None), None)
            if ending is not None:
                return ending
        by_chance = None
        for index in order:
            whole = self._piece(words, at, index, 0)
            ends = before is not None and at + whole["len"] == len(words)
            # A few agreeing elements may be padding, unless the parameter is the next in order.
            ends = ends and (whole["len"] >= CHANCE or following[:1] == [index])
            if whole["len"] > 0 and (whole["len"] == len(self.params[index]) or ends):
                return whole
            for offset, end in self.shards[index]:
                piece = self._piece(words, at, index, offset)
                if offset < end and piece["len"] >= end - offset:
                    piece = dict(piece, len=end - offset)
                    if piece["len"] >= CHANCE:
                        return piece
                    # A few elements may agree by chance, so this piece is used only if no other piece fits.
                    by_chance = by_chance or piece
        return by_chance

    def _ending(self, words, index):
        """The last elements of a parameter, if the fragment begins with these elements and continues with the next
        parameters and padding, or ends; else `None`."""
        param = self.params[index]
        following = self._following(index)
        for length in range(min(UNMISTAKABLE, len(param), len(words)), 0, -1):
            rest = words[length : length + UNMISTAKABLE]
            common = min(len(rest), len(following))
            agrees = torch.equal(rest[:common], following[:common]) and not bool(rest[common:].any())
            is_enough = length + common >= CHANCE or length == len(words)
            if agrees and is_enough and torch.equal(param[-length:], words[:length]):
                return dict(param=index, offset=len(param) - length, len=length)
        return None

    def _ending_out_of_order(self, words, index):
        """The last elements of a parameter, if the fragment begins with these elements and continues with any other
        parameter; else `None`. Some engines assign the parameters to the ranks in turn."""
        param = self.params[index]
        others = [other for number, other in self.params.items() if number != index]
        for length in range(min(UNMISTAKABLE, len(param)), CHANCE - 1, -1):
            rest = words[length : length + UNMISTAKABLE]
            begins = len(rest) == UNMISTAKABLE and any(torch.equal(it[:UNMISTAKABLE], rest) for it in others)
            if begins and torch.equal(param[-length:], words[:length]):
                return dict(param=index, offset=len(param) - length, len=length)
        return None

    def _following(self, index):
        """The first elements of the parameters that follow parameter `index` in the model's order."""
        place, following = self.order.index(index) + 1, self.params[index][:0]
        while place < len(self.order) and len(following) < UNMISTAKABLE:
            following = torch.cat([following, self.params[self.order[place]][:UNMISTAKABLE]])
            place += 1
        return following[:UNMISTAKABLE]

    def _piece(self, words, at, index, offset):
        """The longest piece over which the fragment from `at` on agrees with parameter `index` from `offset` on."""
        param, length = self.params[index], 0
        most = min(len(words) - at, len(param) - offset)
        while length < most:
            end = min(length + CHUNK, most)
            differing = words[at + length : at + end] != param[offset + length : offset + end]
            if bool(differing.any()):
                length += int(differing.nonzero()[0])
                break
            length = end
        return dict(param=index, offset=offset, len=length)


def _shards(tensor, rank, world_size):
    """The two possible ranges of this rank's shard of a parameter: the rank's part of the rows, and its part of the
    elements."""
    numel = tensor.numel()
    row = numel // tensor.shape[0]
    sizes = [-(-tensor.shape[0] // world_size) * row, -(-numel // world_size)]
    return [(min(rank * size, numel), min((rank + 1) * size, numel)) for size in sizes]


def _equal(words, at):
    """The number of equal elements from `at` on. Such a run is often the weight of a norm layer."""
    return _run(words, at, lambda part: part == words[at])


def _run(words, at, holds):
    """The number of consecutive elements from `at` on for which `holds` is true. `holds` gets a part of the elements,
    and returns a tensor of truth values."""
    for first in range(at, len(words), CHUNK):
        other = (~holds(words[first : first + CHUNK])).nonzero()
        if len(other):
            return first + int(other[0]) - at
    return len(words) - at


def _append_unknown(segments, length):
    if segments and segments[-1]["param"] is None:
        segments[-1]["len"] += length
    else:
        segments.append(dict(param=None, offset=0, len=length))


def _words(tensor):
    """A flat fp32 copy of a tensor; the copy stays the same when training changes the parameter."""
    return torch.empty(tensor.numel(), dtype=torch.float32).copy_(tensor.detach().reshape(-1))
