"""Codes in place of gradients: exact weights, from a training that is worth nothing afterwards.

The number of microbatches is not known before the first step is over. So codes for a fixed number are
reserved in it, with address stamps between them. The other steps have as many codes as there are
microbatches. After the last one the process leaves.
"""

import os
import sys

import torch

from zprobe_exec import fragments, gaps, meshes, stamps
from zprobe_rank.codes import Code
from zprobe_rank.sampler import INNER_WINDOWS, Sampler
from zprobe_rank.tensors import flat

# Microbatches of the first step that have a code each.
RESERVED = 16

# Windows of a parameter, besides the first and the last, that are recorded of what lies between backward and optimizer:
# there is a buffer for each microbatch.
FEW_WINDOWS = 2

# Addresses of a fragment from which on they show what is left of the first step; the largest difference of its weight
# from the one that it must have, as a share; and the number of standard errors beyond which it is there.
LEAST, LEFT, CERTAIN = 32, 0.2, 8

# Where a fragment has fewer addresses: the least number of its elements that show what is left of the first step, and
# the least ratio of their sum of squares with the old gradients to that without them.
FEW, MOST_REST = 8, 16


class Coded:
    """The mode in which leaves get codes instead of gradients."""

    # Steps of a run: the first, and two with codes of their own.
    steps = 3

    judges_first_step = True

    def __init__(self, training):
        self.training, self.seed = training, training.settings["seed"]
        self.columns = RESERVED
        # How the first step's gradients are in what is consumed: number of the factor, and of the ranks that kept them.
        self.kept_as = None
        self.left = {}  # Weight and largest element of the first step's gradients in what is consumed, by parameter.
        code = Code(training.world_size * RESERVED, self.seed)
        self.stamp = stamps.Stamp(code.length, training.world_size)
        self.source = Source(code, starts_of(training.params.values()), training.settings["unit"], self.stamp)

    def knows(self, name):
        """True for a parameter that has codes. One that appears in the first step is given some."""
        starts = self.source.starts
        if name not in starts and self.training.step == 0:
            ends = (start + self.training.sizes[other] for other, start in starts.items())
            starts[name] = max(ends, default=0)
        return name in starts

    def gradient(self, name, gradient, count):
        """What takes the place of a leaf's gradient: its code, or zeros where it has none."""
        gradient = meshes.local(gradient)
        if count > 1 or not self.training.has_code():
            return torch.zeros_like(gradient)
        return self.source.gradient(name, gradient, self._column())

    def _column(self):
        """The code of the present microbatch. Two steps have codes of their own; the first has the only
        ones of another length."""
        training = self.training
        step = training.step % 2 if training.step else 0
        return (step * training.world_size + training.rank) * self.columns + training.code

    def consumed(self, fragment, clipping):
        """The recorded elements of what an optimizer consumes, as they were before clipping, without what is left of
        the first step."""
        part = clipping.take_out(fragment.tensor, fragment.pick())
        if self.training.step == 0:
            held = fragments.gradient(fragment.tensor)
            fragment.first = None if held is None else held.clone()
            fragment.factor = fragment.kept = clipping.factor(fragment.tensor)
        elif part is not None and fragment.first is not None and not self.training.transformed:
            part = self._without_first(fragment, part)
            fragment.kept *= clipping.factor(fragment.tensor)
        return part

    def _without_first(self, fragment, part):
        """Elements of a gradient without those of the first step, if they are still there: the addresses of that step
        are looked for, because codes of different lengths may agree."""
        first = fragment.first.to(part.device, torch.float64) / fragment.factor
        is_long = int(fragment.addresses.sum()) >= LEAST
        at = fragment.addresses if is_long else slice(None)
        addresses, values = first[at], part.double()[at]
        square = float(addresses @ addresses)
        if not square:
            return part
        weight = float(values @ addresses) / square
        # What was clipped in place stays so; a copy was clipped where the optimizer is an engine's. An average has it
        # from those ranks alone that kept it, in each step.
        ranks, factors = self.training.world_size, (fragment.kept, fragment.factor, 1.0)
        share = lambda kept: fragment.share * kept[1] / ranks
        weight_of = lambda kept: factors[kept[0]] * share(kept)
        possible = [(number, count) for number in range(len(factors)) for count in range(1, ranks + 1)]
        codes = values - weight * addresses
        noise = float(codes @ codes) ** 0.5 / (square * len(addresses)) ** 0.5
        if self.kept_as is not None and abs(weight_of(self.kept_as) - weight) < CERTAIN * noise:
            # These addresses do not tell that it is another one.
            possible = [self.kept_as]
        kept = min(possible, key=lambda it: abs(weight_of(it) - weight))
        exact = weight_of(kept)
        rest = values - exact * addresses
        if self.kept_as is not None:
            if float(rest @ rest) >= float(values @ values):
                # Somebody has cleared them by now, if there are enough to tell.
                self.kept_as = None if exact >= CERTAIN * noise else self.kept_as
                return part
        else:
            # The old gradients may be nearly all that there is.
            is_small = MOST_REST * float(rest @ rest) < float(values @ values)
            is_nearly_all = is_small and int((addresses != 0).sum()) >= FEW
            is_certain = is_long and abs(weight) >= CERTAIN * noise
            is_exact = abs(weight - exact) <= max(LEFT * exact, CERTAIN * noise)
            if not is_nearly_all and not (is_certain and is_exact):
                return part
        fragment.share = share(kept)
        self.kept_as = kept
        largest = exact * float(first.abs().max())
        for piece in fragment.pieces:
            self.left[piece["param"]] = max((exact, largest), self.left.get(piece["param"], (0.0, 0.0)))
        return (part.double() - exact * first).to(part.dtype)

    def after_backward(self):
        """A backward is over."""

    def see_gradients(self):
        """Looks at what a backward has left, where optimizers do not take turns."""
        if self.training.microbatch == 1 < self.columns and self.training.world_size > 1:
            self._see_reduction()

    def _see_reduction(self):
        """Remarks whether gradients cross the ranks after the first of several microbatches."""
        code, starts = self.source.code, list(self.source.starts.values())
        for fragment in self.training.held.all:
            if fragment.backward is None:
                continue
            start = 0
            for piece in fragment.pieces:
                held = fragment.backward[start : start + piece["len"]].to("cpu", torch.float32)
                start += piece["len"]
                if piece["len"] >= code.length and bool(held.any()):
                    first = starts[piece["param"]] + piece["offset"]
                    own = code.values(self._column(), range(first, first + piece["len"]))
                    factor = (held @ own) / (own @ own)
                    self.training.remarks.reduced_early = bool((held - factor * own).norm() > 0.01 * held.norm())
                    return

    # The first step.

    def reader(self):
        """A reader of the stamps in gradients."""
        training = self.training
        microbatches = min(training.microbatch, RESERVED)
        columns = [rank * RESERVED + code for rank in range(training.world_size) for code in range(microbatches)]
        expected = gaps.Expected(self.stamp, training.sizes, self.source, columns)
        return stamps.Reader(self.stamp, training.params, expected, training.rank)

    def segments(self, reader, tensor):
        """Segments of an optimizer's tensor, read from the stamps in its gradient; without a gradient,
        from what the tensor is."""
        training = self.training
        named, size = training.params.get(training.names.get(id(tensor))), flat(tensor).numel()
        if size == 0:
            return []
        if id(tensor) in training.gathered:
            return [dict(param=None, offset=0, len=size)]
        hint = fragments.whole_or_shard(tensor, named)
        gradient = fragments.gradient(tensor)
        if gradient is None or not bool(gradient.any()):
            if hint is None:
                # Without a gradient an optimizer changes nothing: the tensor holds no part of the model.
                return [dict(param=None, offset=0, len=size, unread=gradient is not None)]
            return [dict(param=hint[0], offset=hint[1], len=size)]
        return reader.locate(gradient, hint)

    def choose_first(self, segments):
        """A choice among the elements that no address takes up: a few runs of each segment."""
        most, sizes, chosen, start = INNER_WINDOWS + 2, self.training.sizes, [], 0
        for segment in segments:
            name, offset = segment["param"], segment["offset"]
            if name is not None:
                for first, end in self.stamp.free(sizes[name], offset, offset + segment["len"], most):
                    chosen.append((start + first - offset, dict(param=name, offset=first, len=end - first)))
            start += segment["len"]
        return chosen

    def before_agreement(self):
        """The first step is over, and ranks are about to agree on what it showed."""

    def after_first_step(self, params, microbatches):
        """Gives the steps behind the first codes that are as short as they can be."""
        training, self.columns = self.training, microbatches
        code = Code(2 * training.world_size * self.columns, self.seed)
        self.source = self.source.followed_by(code, starts_of(params.values()))
        samples = Sampler(True, code.length, self.seed)
        if training.between.eyes is not None:
            training.between.choose(params, Sampler(True, code.length, self.seed, FEW_WINDOWS).choose)
        for fragment in training.held.all:
            fragment.choose(samples.choose)
            # Another turn's backwards may have added to what was consumed.
            held = fragments.gradient(fragment.tensor)
            if held is not None and bool(held.any()):
                fragment.first = held.clone()
            if fragment.first is not None:
                fragment.first = fragment.first[fragment.chosen.to(fragment.first.device)]
                fragment.addresses = self._addresses(fragment.pieces, list(params)).to(fragment.first.device)

    def _addresses(self, pieces, order):
        """True for those recorded elements that were a part of an address in the first step."""
        parts = [torch.zeros(0, dtype=torch.bool)]
        for piece in pieces:
            name, first = order[piece["param"]], piece["offset"]
            values = self.stamp.values(name, self.training.sizes[name], first, first + piece["len"])
            parts.append(values != 0)
        return torch.cat(parts)

    def record(self, step):
        """Emits what is left of the first step's gradients; the codes are known."""
        if self.left:
            # What a backward left has the old gradients still.
            for fragment in self.training.held.all:
                fragment.backward = None
            left = [dict(param=param, weight=it[0], largest=it[1]) for param, it in sorted(self.left.items())]
            self.training.channel.emit("gradients-left", step=step, params=left)
        self.left = {}

    def forget(self):
        """The step begins again, with the same codes."""

    def end(self):
        """The watch is over."""
        leave(self.training)


def leave(training):
    """Ends this process before the script does anything with what it trained."""
    try:
        training.mailbox.post("finished", {})
        training.mailbox.collect("finished", training.settings["patience"])
    except OSError:
        pass  # The run directory is full, or gone.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(0)


class Source:
    """Gradients that are codes: rows of a Walsh-Hadamard matrix, one for each rank and microbatch. In the
    first step, address stamps lie between them."""

    def __init__(self, code, starts, unit, stamp=None):
        """`starts`: place of each parameter in the flat order, by name; `unit`: what all codes and stamps
        are multiples of."""
        self.code, self.starts, self.unit, self.stamp = code, starts, unit, stamp
        self.signs, self.stamps = {}, {}

    def followed_by(self, code, starts):
        """Codes of another length; the signs of elements stay where parameters do."""
        source = Source(code, starts, self.unit)
        source.signs = {key: signs for key, signs in self.signs.items() if self.starts[key[0]] == starts.get(key[0])}
        return source

    def gradient(self, name, gradient, column):
        """The code of gradient `column` in the elements of a parameter."""
        start, size, length = self.starts[name], gradient.numel(), self.code.length
        key = (name, gradient.device)
        if key not in self.signs:
            signs = self.code.signs(range(start, start + size)).to(torch.int8)
            self.signs[key] = signs.to(gradient.device)
        period = self.code.period(column, start).to(gradient.device, gradient.dtype) * self.unit
        whole = size - size % length
        signs, values = self.signs[key], torch.empty(size, dtype=gradient.dtype, device=gradient.device)
        torch.mul(signs[:whole].view(-1, length), period, out=values[:whole].view(-1, length))
        torch.mul(signs[whole:], period[: size - whole], out=values[whole:])
        if self.stamp is not None:
            if key not in self.stamps:
                self.stamps[key] = self.stamp.blocks(name, size).to(gradient.device)
            self.stamp.put(self.stamps[key], values, self.unit)
        return values.view(gradient.shape)


def starts_of(params):
    """Place of each parameter in the flat order, by name."""
    starts, start = {}, 0
    for param in params:
        starts[param.name] = start
        start += param.numel
    return starts
