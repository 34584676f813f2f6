"""The mode that replaces gradients by codes: the weights are exact, but the trained model is worthless.

The number of microbatches is unknown until the first step is over. So the first step reserves codes for a fixed number
of microbatches, with address stamps between the codes. Later steps have a code for each microbatch. The process exits
after the last watched step.
"""

import os
import sys

import torch

from zprobe_exec import fragments, gaps, meshes, stamps
from zprobe_rank.codes import Code
from zprobe_rank.sampler import INNER_WINDOWS, Sampler
from zprobe_rank.tensors import flat

# The number of microbatches of the first step that have a code of their own.
RESERVED = 16

# The number of windows of a parameter, besides the first and the last, in buffers between backward and optimizer. The
# number is small because each microbatch has its own buffers.
FEW_WINDOWS = 2

# The time that a finished rank waits for the other ranks, in seconds. A rank that skipped a step cannot finish, because
# it waits for this rank in a collective.
LINGER = 20

# The test for left-over gradients of the first step in a fragment. LEAST is the number of address elements that the
# test needs, LEFT the largest relative error of their weight, and CERTAIN the significant number of standard errors.
LEAST, LEFT, CERTAIN = 32, 0.2, 8

# The test for left-over gradients in a fragment with fewer address elements. FEW is the number of elements that the
# test needs, and MOST_REST the least factor by which subtracting the old gradients must shrink the sum of squares.
FEW, MOST_REST = 8, 16


class Coded:
    """The mode in which the leaves of autograd graphs get codes instead of gradients."""

    # The number of watched steps: the first step, and two steps with codes of their own.
    steps = 3

    judges_first_step = True

    def __init__(self, training):
        self.training, self.seed = training, training.settings["seed"]
        self.columns = RESERVED
        # The way in which consumed gradients include those of the first step: the index of the factor in
        # `_without_first`, and the number of ranks that kept the old gradients. `None` if no old gradient is included.
        self.kept_as = None
        self.left = {}  # By parameter: the weight and largest element of left-over first-step gradients.
        self.reduced_early = None  # The answer of `_is_reduced` in the present window, until its second microbatch.
        code = Code(training.world_size * RESERVED, self.seed)
        self.stamp = stamps.Stamp(code.length, training.world_size)
        self.source = Source(code, starts_of(training.params.values()), training.settings["unit"], self.stamp)

    def knows(self, name):
        """True if the parameter has codes. A parameter that first appears during the first step gets codes, too."""
        starts = self.source.starts
        if name not in starts and self.training.step == 0:
            ends = (start + self.training.sizes[other] for other, start in starts.items())
            starts[name] = max(ends, default=0)
        return name in starts

    def gradient(self, name, gradient, count):
        """The replacement of a leaf's gradient: the leaf's code, or zeros for a repeated gradient or a microbatch
        without a code."""
        gradient = meshes.local(gradient)
        if count > 1 or not self.training.has_code():
            return torch.zeros_like(gradient)
        return self.source.gradient(name, gradient, self._column())

    def _column(self):
        """The number of the code of this rank's present microbatch. The first step has codes of another length. Later
        steps alternate between two sets of codes."""
        training = self.training
        step = training.step % 2 if training.step else 0
        return (step * training.world_size + training.rank) * self.columns + training.code

    def consumed(self, fragment, clipping):
        """The recorded elements of a consumed gradient, as they were before clipping, and without left-over gradients
        of the first step."""
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
        """The elements `part` of a gradient minus the gradients of the first step, if these were not cleared. zprobe
        recognises old gradients by the addresses of the first step, because codes of different lengths may agree."""
        first = fragment.first.to(part.device, torch.float64) / fragment.factor
        is_long = int(fragment.addresses.sum()) >= LEAST
        at = fragment.addresses if is_long else slice(None)
        addresses, values = first[at], part.double()[at]
        square = float(addresses @ addresses)
        if not square:
            return part
        weight = float(values @ addresses) / square
        # An old gradient that was clipped in place stays clipped; an engine's optimizer may have clipped a copy. An
        # average includes only the old gradients that some rank has kept.
        ranks, factors = self.training.world_size, (fragment.kept, fragment.factor, 1.0)
        share = lambda kept: fragment.share * kept[1] / ranks
        weight_of = lambda kept: factors[kept[0]] * share(kept)
        possible = [(number, count) for number in range(len(factors)) for count in range(1, ranks + 1)]
        codes = values - weight * addresses
        noise = float(codes @ codes) ** 0.5 / (square * len(addresses)) ** 0.5
        if self.kept_as is not None and abs(weight_of(self.kept_as) - weight) < CERTAIN * noise:
            # These addresses do not contradict the weight that another fragment has shown.
            possible = [self.kept_as]
        kept = min(possible, key=lambda it: abs(weight_of(it) - weight))
        exact = weight_of(kept)
        rest = values - exact * addresses
        if self.kept_as is not None:
            if float(rest @ rest) >= float(values @ values):
                # The script has cleared the old gradients by now, if their expected weight is significant.
                self.kept_as = None if exact >= CERTAIN * noise else self.kept_as
                return part
        else:
            # The gradient may consist almost only of old gradients.
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
        """Does nothing after a backward in this mode."""

    def see_gradients(self):
        """Looks at the gradients after a backward; called only if optimizers do not take turns."""
        if self.training.microbatch == 1 < self.columns and self.training.world_size > 1:
            self.reduced_early = self._is_reduced()
        elif self.training.microbatch == 2 and self.reduced_early is not None:
            # The first microbatch was not the only one of its window.
            self.training.remarks.reduced_early, self.reduced_early = self.reduced_early, None

    def _is_reduced(self):
        """True if gradients are reduced over the ranks after the first microbatch: the gradients consist of the codes
        that all ranks have for this microbatch, and of nothing else. `None` without gradients."""
        code, starts = self.source.code, list(self.source.starts.values())
        own = self._column()
        columns = [own + (rank - self.training.rank) * self.columns for rank in range(self.training.world_size)]
        for fragment in self.training.held.all:
            if fragment.backward is None:
                continue
            start = 0
            for piece in fragment.pieces:
                # In whole periods the codes are orthogonal to each other.
                whole = piece["len"] - piece["len"] % code.length
                held = fragment.backward[start : start + whole].to("cpu", torch.float32)
                start += piece["len"]
                if bool(held.any()):
                    first = starts[piece["param"]] + piece["offset"]
                    rows = [code.values(column, range(first, first + whole)) for column in columns]
                    factors = [(held @ row) / (row @ row) for row in rows]
                    rest = held - sum(factor * row for factor, row in zip(factors, rows))
                    others = sum(abs(factor) for factor in factors) - abs(factors[self.training.rank])
                    is_theirs = others > 0.01 * abs(factors[self.training.rank])
                    return bool(is_theirs and rest.norm() <= 0.01 * held.norm())
        return None

    # Reading the address stamps of the first step.

    def reader(self):
        """A `Reader` of the address stamps in the gradients of the first step."""
        training = self.training
        microbatches = min(training.microbatch, RESERVED)
        columns = [rank * RESERVED + code for rank in range(training.world_size) for code in range(microbatches)]
        expected = gaps.Expected(self.stamp, training.sizes, self.source, columns)
        return stamps.Reader(self.stamp, training.params, expected, training.rank)

    def segments(self, reader, tensor):
        """The segments of an optimizer's tensor, read from the stamps in its gradient. A tensor without a gradient
        shows its place only if the tensor is a parameter or a shard."""
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
        """The elements that are recorded in the first step: of each segment a few runs between the addresses."""
        most, sizes, chosen, start = INNER_WINDOWS + 2, self.training.sizes, [], 0
        for segment in segments:
            name, offset = segment["param"], segment["offset"]
            if name is not None:
                for first, end in self.stamp.free(sizes[name], offset, offset + segment["len"], most):
                    chosen.append((start + first - offset, dict(param=name, offset=first, len=end - first)))
            start += segment["len"]
        return chosen

    def before_agreement(self):
        """Does nothing after the first step in this mode."""

    def after_first_step(self, params, microbatches):
        """Gives the steps after the first step the shortest possible codes, and fixes the recorded elements."""
        training, self.columns = self.training, microbatches
        code = Code(2 * training.world_size * self.columns, self.seed)
        self.source = self.source.followed_by(code, starts_of(params.values()))
        samples = Sampler(True, code.length, self.seed)
        if training.between.eyes is not None:
            training.between.choose(params, Sampler(True, code.length, self.seed, FEW_WINDOWS).choose)
        for fragment in training.held.all:
            fragment.choose(samples.choose)
            # The backwards of another optimizer's turn may have added to the consumed gradient.
            held = fragments.gradient(fragment.tensor)
            if held is not None and bool(held.any()):
                fragment.first = held.clone()
            if fragment.first is not None:
                fragment.first = fragment.first[fragment.chosen.to(fragment.first.device)]
                fragment.addresses = self._addresses(fragment.pieces, list(params)).to(fragment.first.device)

    def _addresses(self, pieces, order):
        """A mask of the recorded elements: true for each element that was part of an address in the first step."""
        parts = [torch.zeros(0, dtype=torch.bool)]
        for piece in pieces:
            name, first = order[piece["param"]], piece["offset"]
            values = self.stamp.values(name, self.training.sizes[name], first, first + piece["len"])
            parts.append(values != 0)
        return torch.cat(parts)

    def record(self, step):
        """Emits the left-over gradients of the first step. Local gradients need no record, because they are codes."""
        if self.left:
            # The gradients after a backward still include the old gradients, and are not recorded.
            for fragment in self.training.held.all:
                fragment.backward = None
            left = [dict(param=param, weight=it[0], largest=it[1]) for param, it in sorted(self.left.items())]
            self.training.channel.emit("gradients-left", step=step, params=left)
        self.left = {}

    def forget(self):
        """Called when a step begins again: does nothing, because the step keeps its codes."""

    def end(self):
        """Exits the process, because the watch is over and the model was trained on codes."""
        leave(self.training)


def leave(training):
    """Exits this process before the script can use the model that it has trained on codes."""
    try:
        training.mailbox.post("finished", {})
        training.mailbox.collect("finished", min(training.settings["patience"], LINGER))
    except OSError:
        pass  # The disk of the run directory is full, or the directory is gone.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(0)


class Source:
    """The source of coded gradients: rows of a Walsh-Hadamard matrix, a row for each rank and microbatch. In the first
    step, address stamps lie between the codes."""

    def __init__(self, code, starts, unit, stamp=None):
        """`starts` has the place of each parameter in the flat order, by name. All codes and stamps are multiples of
        `unit`."""
        self.code, self.starts, self.unit, self.stamp = code, starts, unit, stamp
        self.signs, self.stamps = {}, {}

    def followed_by(self, code, starts):
        """A source with codes of another length. The signs of a parameter are reused if its place is the same."""
        source = Source(code, starts, self.unit)
        source.signs = {key: signs for key, signs in self.signs.items() if self.starts[key[0]] == starts.get(key[0])}
        return source

    def gradient(self, name, gradient, column):
        """The code of gradient `column` in all elements of the parameter `name`, shaped like `gradient`."""
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
    """The place of each parameter in the flat order, by name."""
    starts, start = {}, 0
    for param in params:
        starts[param.name] = start
        start += param.numel
    return starts
