"""Observes the engine of this process between a backward and the optimizer, if zprobe has a class `Eyes` for the
engine."""

import torch

from zprobe_exec import fragments, main_grad, objects
from zprobe_rank.engines.ddp import eyes as ddp
from zprobe_rank.engines.deepspeed import eyes as deepspeed
from zprobe_rank.engines.fsdp2 import eyes as fsdp2
from zprobe_rank.tensors import dense

# The classes `Eyes` of all engines. An engine that wraps another engine comes before the wrapped engine.
KINDS = (deepspeed.Eyes, fsdp2.Eyes, main_grad.Eyes, ddp.Eyes)


class Between:
    """Records the buffers of an engine between a backward and the optimizer, and the events of its buckets and hooks.

    These records show where an error arises, and do not change the verdict.
    """

    def __init__(self, training):
        self.training, self.eyes = training, None
        self.is_armed = False
        self.chosen = {}  # The indices of the recorded elements of each parameter, by its number.
        self.places = {}  # The same indices on a device, by parameter number and device.
        self.seen = []  # The buffers of the present step, as tuples: point, microbatch, parts.
        self.found = {}  # Parts of accumulators before the next backward, by the preceding microbatch.
        self.is_reduced = False  # True once the present step has reduced gradients.

    def arm(self):
        """Finds the engine that trains, once; to be called before an optimizer steps for the first time."""
        if not self.is_armed:
            self.is_armed = True
            self._softly(self._find)

    def open(self):
        """Begins to observe the engine's buffers; to be called once parameters have numbers. Returns the name of the
        class that wraps the optimizer, `None` without an engine."""
        return self._softly(self._open) if self.eyes is not None else None

    def pieces(self, tensor):
        """The pieces of parameters in a tensor of the optimizer, in the form of `BaseEyes.pieces`; `None` if the engine
        does not know the pieces."""
        return self.eyes.pieces(tensor) if self.eyes is not None else None

    def close(self):
        """Ends the observation of the engine, and drops all recorded buffers."""
        eyes, self.eyes = self.eyes, None
        self.chosen, self.places = {}, {}
        self.forget()
        if eyes is not None:
            eyes.close()

    def choose(self, params, pick):
        """Fixes, and emits, the elements that are recorded of each parameter. `pick` chooses the pieces of given
        segments, and returns each piece with the place of its first element."""
        segments = [dict(param=number, offset=0, len=param.numel) for number, param in enumerate(params.values())]
        of_each = [pick([segment]) for segment in segments]
        self.chosen = {number: fragments.index(chosen) for number, chosen in enumerate(of_each)}
        pieces = [piece for chosen in of_each for _, piece in chosen]
        self.training.channel.emit("layout", layout="full", segments=segments)
        self.training.channel.emit("layout", layout="full", segments=pieces, sampled=True)

    def begin(self):
        """Called before a backward."""
        if self.eyes is not None:
            self._softly(self.eyes.begin, self.training.step, self.training.code)
            self._softly(self._look_again)

    def when_over(self, look):
        """Calls `look` once the engine has finished its work for the backward that autograd has just ended."""
        if self.eyes is None:
            look()
        else:
            self.eyes.when_over(look)

    def after_backward(self):
        """Called after a backward: copies the accumulated gradients of a recorded microbatch."""
        if self.eyes is not None and self.training.has_code():
            self._softly(self._accumulated)

    def fired(self, arrived):
        """Two lists by parameter number: the firings of gradient hooks, and the delivered gradients. `arrived` has the
        counts of gradients that leaves have got. If the engine's hooks are not observed, these counts are the first
        list, and the second list is `None`."""
        counts = self._softly(self.eyes.fired) if self.eyes is not None and self.training.is_alone() else None
        if counts is None:
            return arrived, None
        pairs = [counts.get(number, (count, count)) for number, count in enumerate(arrived)]
        return [fired for fired, _ in pairs], [arrived for _, arrived in pairs]

    def forget(self):
        """Drops the buffers of the step, which begins now, or begins again after its window was given up."""
        self.seen, self.found, self.is_reduced = [], {}, False

    def record(self, step):
        """Emits the buffers that were copied in `step`."""
        self._softly(self._record, step)
        self.forget()

    def describe_afterwards(self):
        """Emits the facts about the engine that are available only after its steps."""
        facts = self._softly(self.eyes.describe_afterwards) if self.eyes is not None else None
        if facts:
            self.training.channel.emit("engine-described", engine=self.eyes.engine, facts=facts)

    def _softly(self, see, *args):
        """The result of `see`. If `see` fails, zprobe reports the error and ends the observation of the engine, and the
        result is `None`."""
        try:
            return see(*args)
        except Exception as error:
            self.training.channel.emit(
                "not-observed",
                what="the engine's buffers between backward and optimizer",
                why=type(error).__name__,
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
        """Copies the rank's own gradient sums, unless a reduction has already added gradients of other ranks."""
        self.is_reduced = self.is_reduced or bool(self.eyes.has_reduced())
        if not self.is_reduced:
            self._look("accumulator")

    def _look(self, point):
        """Copies the recorded elements of the gradients at `point`, for the present microbatch."""
        parts = self._parts()
        if parts is not None:
            self.seen.append((point, self.training.code, parts))

    def _look_again(self):
        """Copies the accumulated gradients again before the next microbatch's backward, to find changes between the two
        backwards."""
        point, microbatch, _ = self.seen[-1] if self.seen else (None, None, None)
        if point == "accumulator" and microbatch != self.training.code:
            self.found[microbatch] = self._parts()

    def _parts(self):
        """Copies of the recorded elements of the gradients, a tensor for each parameter; `None` if gradients are not
        recorded or not visible now."""
        is_read = self.chosen and self.training.is_alone() and not self.training.is_aside()
        gradients = self.eyes.gradients() if is_read else None
        if gradients is None:
            return None
        held = zip(self.chosen, self.training.indices)
        return [self._pick(number, gradients[number] if number in gradients else self._own(name)) for number, name in held]

    def _own(self, name):
        """The gradient of a parameter that the engine does not hold; `None` if there is no such gradient."""
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
    """True if two parts hold the same numbers. The parts may lie on different devices, because zeros for a missing
    gradient are on the host."""
    one, other = one.cpu().double(), other.cpu().double()
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
