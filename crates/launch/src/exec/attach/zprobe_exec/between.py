"""What lies between a backward and the optimizer, as far as the engine of this process has eyes."""

import torch

from zprobe_exec import fragments, objects
from zprobe_rank.engines.ddp import eyes as ddp
from zprobe_rank.engines.deepspeed import eyes as deepspeed
from zprobe_rank.engines.fsdp2 import eyes as fsdp2
from zprobe_rank.tensors import dense

# The eyes of an engine that uses another one come first.
KINDS = (deepspeed.Eyes, fsdp2.Eyes, ddp.Eyes)


class Between:
    """The buffers of an engine between a backward and the optimizer, and what it says of its buckets and hooks.

    They say where something is wrong, and not whether: what cannot be seen of them changes no verdict.
    """

    def __init__(self, training):
        self.training, self.eyes = training, None
        self.is_armed = False
        self.chosen = {}  # Places of the recorded elements of each parameter, by its number.
        self.places = {}  # The same on a device, by number and device.
        self.seen = []  # Buffers of the present step: point, microbatch and parts.
        self.found = {}  # Parts of accumulators as the next backward finds them, by the microbatch that left them.
        self.is_reduced = False  # True once gradients were reduced in the present step.

    def arm(self):
        """Finds the engine that trains; to be called when an optimizer steps for the first time."""
        if not self.is_armed:
            self.is_armed = True
            self._softly(self._find)

    def open(self):
        """Opens the eyes of the engine; to be called when parameters have numbers. Returns the class that wraps the
        optimizer, or None."""
        return self._softly(self._open) if self.eyes is not None else None

    def pieces(self, tensor):
        """The pieces of parameters in a tensor of the optimizer's, as the engine says; None where it does not."""
        return self.eyes.pieces(tensor) if self.eyes is not None else None

    def close(self):
        """Closes the eyes, and lets go of what was seen."""
        eyes, self.eyes = self.eyes, None
        self.chosen, self.places = {}, {}
        self.forget()
        if eyes is not None:
            eyes.close()

    def choose(self, params, pick):
        """Fixes, and emits, which elements are recorded of each of the parameters: `pick` has the chosen pieces of some
        segments, each with the place of its first element."""
        segments = [dict(param=number, offset=0, len=param.numel) for number, param in enumerate(params.values())]
        of_each = [pick([segment]) for segment in segments]
        self.chosen = {number: fragments.index(chosen) for number, chosen in enumerate(of_each)}
        pieces = [piece for chosen in of_each for _, piece in chosen]
        self.training.channel.emit("layout", layout="full", segments=segments)
        self.training.channel.emit("layout", layout="full", segments=pieces, sampled=True)

    def begin(self):
        """A backward begins."""
        if self.eyes is not None:
            self._softly(self.eyes.begin, self.training.step, self.training.code)
            self._softly(self._look_again)

    def when_over(self, look):
        """Calls `look` once the engine, too, is done with the backward that autograd has just ended."""
        if self.eyes is None:
            look()
        else:
            self.eyes.when_over(look)

    def after_backward(self):
        """A backward is over."""
        if self.eyes is not None and self.training.has_code():
            self._softly(self._accumulated)

    def fired(self, arrived):
        """Lists of firings of gradient hooks and of gradients that arrived, by number. `arrived` has the gradients that
        leaves have got; where the engine's hooks are not seen, they count as firings, and the second list is None."""
        counts = self._softly(self.eyes.fired) if self.eyes is not None and self.training.is_alone() else None
        if counts is None:
            return arrived, None
        pairs = [counts.get(number, (count, count)) for number, count in enumerate(arrived)]
        return [fired for fired, _ in pairs], [arrived for _, arrived in pairs]

    def forget(self):
        """The step begins, or is begun again."""
        self.seen, self.found, self.is_reduced = [], {}, False

    def record(self, step):
        """Emits what was seen in a step."""
        self._softly(self._record, step)
        self.forget()

    def describe_afterwards(self):
        """Emits what the engine can tell of itself only after its steps."""
        facts = self._softly(self.eyes.describe_afterwards) if self.eyes is not None else None
        if facts:
            self.training.channel.emit("engine-described", engine=self.eyes.engine, facts=facts)

    def _softly(self, see, *args):
        """The result of `see`; None if it fails, which closes the eyes."""
        try:
            return see(*args)
        except Exception as error:
            self.training.channel.emit(
                "not-observed",
                what="what the engine holds between backward and optimizer",
                why="%s: %s" % (type(error).__name__, error),
            )
            self.close()
            return None

    def _find(self):
        trained = self.training.leaves.hooked
        for kind in KINDS:
            found = [it for it in objects.named(kind.kind) if any(id(leaf) in trained for leaf in kind.leaves(it))]
            if found:
                if len(found) <= kind.most:
                    self.eyes = kind(found)
                    self.eyes.arm()
                return

    def _open(self):
        training, eyes = self.training, self.eyes
        index = {it: training.indices[name] for it, name in training.names.items() if name in training.indices}
        wrapper, facts = eyes.describe()
        eyes.on_reduced = lambda: self._softly(self._look, "reduced")
        eyes.open(index, self._emit)
        training.channel.emit("engine-described", engine=eyes.engine, facts=facts)
        return wrapper

    def _record(self, step):
        channel = self.training.channel
        for point, microbatch, parts in self.seen:
            left = fragments.joined(parts)
            channel.buffer(point, "full", left, step=step, microbatch=microbatch)
            found = self.found.get(microbatch) if point == "accumulator" else None
            if found is not None and not _is_same(left, fragments.joined(found)):
                pairs = zip(self.chosen, parts, found)
                changed = [number for number, before, now in pairs if not _is_same(before, now)]
                channel.emit("gradients-changed", step=step, microbatch=microbatch, params=changed)

    def _emit(self, type, **fields):
        is_recorded = self.training.has_code() and not self.training.is_aside()
        if type == "not-observed" or is_recorded:
            self.training.channel.emit(type, **fields)

    def _accumulated(self):
        """Looks at the rank's own sums, unless they hold the gradients of other ranks."""
        self.is_reduced = self.is_reduced or bool(self.eyes.has_reduced())
        if not self.is_reduced:
            self._look("accumulator")

    def _look(self, point):
        """Copies the recorded elements of the gradients."""
        parts = self._parts()
        if parts is not None:
            self.seen.append((point, self.training.code, parts))

    def _look_again(self):
        """Copies them once more before the next microbatch's backward: nobody should have changed them."""
        point, microbatch, _ = self.seen[-1] if self.seen else (None, None, None)
        if point == "accumulator" and microbatch != self.training.code:
            self.found[microbatch] = self._parts()

    def _parts(self):
        """Copies of the recorded elements of the gradients, one for each parameter; None where they are not seen."""
        is_read = self.chosen and self.training.is_alone() and not self.training.is_aside()
        gradients = self.eyes.gradients() if is_read else None
        if gradients is None:
            return None
        held = zip(self.chosen, self.training.indices)
        return [self._pick(number, gradients[number] if number in gradients else self._own(name)) for number, name in held]

    def _own(self, name):
        """The gradient of a parameter that is not the engine's; None where there is none."""
        param = self.training.params.get(name)
        gradient = dense(param.tensor.grad) if param is not None and param.tensor is not None else None
        return gradient if gradient is not None and gradient.numel() == param.numel else None

    def _pick(self, number, gradient):
        if gradient is None:
            return torch.zeros(len(self.chosen[number]))
        key = (number, gradient.device)
        if key not in self.places:
            self.places[key] = self.chosen[number].to(gradient.device)
        return gradient[self.places[key]]


def _is_same(one, other):
    """True if two parts hold the same numbers. Zeros for a missing gradient are on the host, whatever has the others."""
    one, other = one.cpu().double(), other.cpu().double()
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
