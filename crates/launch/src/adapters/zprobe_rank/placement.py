"""The parameters that a fragment of the optimizer holds, recognised by its content.

Engines flatten, reorder, pad and shard parameters, each release in its own way. Before the first
step a fragment holds starting values, and the model's are made so that a run of them occurs only
once: so the content of a fragment shows where each of its elements belongs. A piece that is too short to be
recognised is placed by its neighbour: the parameter before it in the model's order.
"""

import torch

# Elements that make a run unmistakable: 16 of 16 possible values each.
UNMISTAKABLE = 16

# Elements that do not agree by chance beside something else that fits.
CHANCE = 4

# Places in a row at which nothing known begins, after which the rest of a fragment is not looked at.
STRANGE = 256

# Elements that are compared at once.
CHUNK = 1 << 16


class Placement:
    """Finds runs of the model's starting values."""

    def __init__(self, tensors, rank, world_size):
        """`tensors`: each trainable parameter's starting values by index, in the model's order."""
        self.params = {index: _words(tensor) for index, tensor in tensors.items()}
        self.order = sorted(self.params)
        self.has_zeros = any(bool((words == 0).any()) for words in self.params.values())
        self.world_size = world_size
        self.shards = {index: _shards(tensor, rank, world_size) for index, tensor in tensors.items()}

    def locate(self, tensor, hint=None):
        """Segments (param, offset, len) of a flat fragment; param None where nothing is recognised.

        A fragment that begins with too few elements to be recognised may be given a hint, (param, offset, behind):
        it is followed if the fragment holds the parameter from there on. `behind` are the parameters that the
        engine puts behind it, which are preferred where a piece fits several; None where the fragment is the
        parameter itself, whatever it holds.
        """
        if hint is not None and hint[2] is None:
            return [dict(param=hint[0], offset=0, len=tensor.numel())]
        words = _words(tensor)
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

    def _hinted(self, words, hint):
        """The rest of a parameter that a fragment should begin with, if it does."""
        index, offset = (None, 0) if hint is None else hint[:2]
        if index not in self.params:
            return None
        piece = self._piece(words, 0, index, offset)
        is_rest = piece["len"] > 0 and piece["len"] == min(len(self.params[index]) - offset, len(words))
        return piece if is_rest else None

    def _whole(self, words):
        """The fragment as one parameter, which is more than a shard of a few elements can be.

        Its values may have been rounded, or decayed: DeepSpeed's FP16_UnfusedOptimizer takes a step
        with gradients of zero when it is made.
        """
        for index in self.order:
            param = self.params[index]
            if len(param) == len(words) and torch.allclose(param, words, rtol=2**-7, atol=0):
                return dict(param=index, offset=0, len=len(words))
        return None

    def _slots(self, words, order):
        """The fragment as this rank's shards of the first parameters of `order`, each padded to the size that
        it has on the first rank; None if it is not that. Nothing is looked for in the padding, which need not
        be 0."""
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
            # Slots that hold nothing would fit anywhere.
            if at == len(words) and any(segment["param"] is not None for segment in segments):
                return segments
        return None

    def _padding(self, words, at):
        """Number of elements from `at` on that are padding, since no parameter has them: zeros, or the
        value that memory is poisoned with."""
        return _run(words, at, lambda part: part.isnan() if self.has_zeros else part.isnan() | (part == 0))

    def _candidates(self, window):
        """Places (param, offset) at which a parameter holds `window`."""
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
        """The longest piece that begins at `at`, if it is long enough to occur only once."""
        candidates = self._candidates(words[at : at + UNMISTAKABLE])
        pieces = [self._piece(words, at, index, offset) for index, offset in candidates]
        longest = max(pieces, key=lambda piece: piece["len"], default=None)
        return longest and self._without_chance(words, at, longest)

    def _without_chance(self, words, at, piece):
        """The piece without elements that agree by chance: what follows a shard may begin as the
        parameter goes on. The next piece then has to be longer than the elements that it takes away."""
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
        """A short piece: all that there can be of a parameter, the next in order where several fit; the order is
        that of `held`, where the piece before is in it, or the model's.

        That is a whole parameter, a shard, what a fragment's end cuts off, or what its beginning
        leaves of a parameter that the next one follows.
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
            # What begins with so few elements may be padding, unless it is due there.
            ends = ends and (whole["len"] >= CHANCE or following[:1] == [index])
            if whole["len"] > 0 and (whole["len"] == len(self.params[index]) or ends):
                return whole
            for offset, end in self.shards[index]:
                piece = self._piece(words, at, index, offset)
                if offset < end and piece["len"] >= end - offset:
                    piece = dict(piece, len=end - offset)
                    if piece["len"] >= CHANCE:
                        return piece
                    # So few elements may agree by chance: used only where nothing else fits.
                    by_chance = by_chance or piece
        return by_chance

    def _ending(self, words, index):
        """The last elements of a parameter, if the fragment begins with them and then goes on with
        the parameters that follow, and padding, or ends."""
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
        """The last elements of a parameter, if the fragment begins with them and then goes on with any other
        parameter: engines may deal the parameters out to the ranks in turn."""
        param = self.params[index]
        others = [other for number, other in self.params.items() if number != index]
        for length in range(min(UNMISTAKABLE, len(param)), CHANCE - 1, -1):
            rest = words[length : length + UNMISTAKABLE]
            begins = len(rest) == UNMISTAKABLE and any(torch.equal(it[:UNMISTAKABLE], rest) for it in others)
            if begins and torch.equal(param[-length:], words[:length]):
                return dict(param=index, offset=len(param) - length, len=length)
        return None

    def _following(self, index):
        """The first elements of the parameters behind this one."""
        place, following = self.order.index(index) + 1, self.params[index][:0]
        while place < len(self.order) and len(following) < UNMISTAKABLE:
            following = torch.cat([following, self.params[self.order[place]][:UNMISTAKABLE]])
            place += 1
        return following[:UNMISTAKABLE]

    def _piece(self, words, at, index, offset):
        """The piece over which words and parameter agree."""
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
    """The ranges of this rank's shards of a parameter: even pieces of its rows, and of its elements."""
    numel = tensor.numel()
    row = numel // tensor.shape[0]
    sizes = [-(-tensor.shape[0] // world_size) * row, -(-numel // world_size)]
    return [(min(rank * size, numel), min((rank + 1) * size, numel)) for size in sizes]


def _equal(words, at):
    """Number of elements from `at` on that are equal, as many as a norm's weight has."""
    return _run(words, at, lambda part: part == words[at])


def _run(words, at, holds):
    """Number of elements from `at` on for each of which `holds`, a function of a part of them, is true."""
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
    """A flat fp32 copy of a tensor, since parameters change."""
    return torch.empty(tensor.numel(), dtype=torch.float32).copy_(tensor.detach().reshape(-1))
