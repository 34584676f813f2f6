"""What lies between a backward and the optimizer, as far as the engine of this process has eyes."""

import torch

from zprobe_exec import fragments, objects
from zprobe_rank.engines.ddp import eyes as ddp
from zprobe_rank.engines.deepspeed import eyes as deepspeed
from zprobe_rank.engines.fsdp2 import eyes as fsdp2

# The eyes of an engine that uses another one come first.
KINDS = (deepspeed.Eyes, fsdp2.Eyes, ddp.Eyes)


class Between:
    """The buffers of an engine between a backward and the optimizer, and what it says of its buckets and hooks."""

    def __init__(self, training):
        self.training, self.eyes = training, None
        self.chosen = {}  # Places of the recorded elements of each parameter, by its number.
        self.seen = []  # Buffers of the present step: point, microbatch and parts.
        self.before = {}  # Parts of accumulators as the next backward finds them, by the microbatch that left them.
        self.is_reduced = False  # True once gradients were reduced in the present step.

    def open(self):
        """Opens the eyes of the engine; to be called when parameters have numbers. Returns the class that wraps the
        optimizer, or None."""
        training = self.training
        index = {it: training.indices[name] for it, name in training.names.items() if name in training.indices}
        found = [(kind, objects.named(kind.kind)) for kind in KINDS]
        kind, of_kind = next(((kind, them) for kind, them in found if them), (None, []))
        if kind is None or len(of_kind) > kind.most:
            return None
        eyes = kind(of_kind, index)
        wrapper, facts = eyes.describe()
        eyes.on_reduced = lambda: training.softly("reductions", self._look, "reduced")
        try:
            eyes.open(self._emit)
        except BaseException:
            eyes.close()
            raise
        training.channel.emit("engine-described", engine=eyes.engine, facts=facts)
        self.eyes = eyes
        return wrapper

    def close(self):
        """Closes the eyes."""
        if self.eyes is not None:
            self.eyes.close()
            self.eyes = None

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
            self.eyes.begin(self.training.step, self.training.code)
            self.training.softly("accumulators", self._look_again)

    def when_over(self, look):
        """Calls `look` once the engine, too, is done with the backward that autograd has just ended."""
        if self.eyes is None:
            look()
        else:
            self.eyes.when_over(look)

    def after_backward(self):
        """A backward is over."""
        if self.eyes is not None and self.training.has_code():
            self.training.softly("accumulators", self._accumulated)

    def fired(self, arrived):
        """Lists of firings of gradient hooks and of gradients that arrived, by number. `arrived` has the gradients that
        leaves have got; where the engine's hooks are not seen, they count as firings, and the second list is None."""
        counts = self.eyes.fired() if self.eyes is not None and self.training.is_alone() else None
        if counts is None:
            return arrived, None
        pairs = [counts.get(number, (count, count)) for number, count in enumerate(arrived)]
        return [fired for fired, _ in pairs], [arrived for _, arrived in pairs]

    def forget(self):
        """The step begins, or is begun again."""
        self.seen, self.before, self.is_reduced = [], {}, False

    def record(self, channel, step):
        """Emits what was seen in a step."""
        for point, microbatch, parts in self.seen:
            channel.buffer(point, "full", fragments.joined(parts), step=step, microbatch=microbatch)
            after = self.before.get(microbatch) if point == "accumulator" else None
            if after is not None:
                pairs = zip(self.chosen, parts, after)
                changed = [number for number, left, found in pairs if not torch.equal(left.double(), found.double())]
                if changed:
                    channel.emit("gradients-changed", step=step, microbatch=microbatch, params=changed)
        self.forget()

    def describe_afterwards(self):
        """Emits what the engine can tell of itself only after its steps."""
        facts = {} if self.eyes is None else self.eyes.describe_afterwards()
        if facts:
            self.training.channel.emit("engine-described", engine=self.eyes.engine, facts=facts)

    def _emit(self, type, **fields):
        if self.training.has_code() and not self.training.is_aside():
            self.training.channel.emit(type, **fields)

    def _accumulated(self):
        """Looks at the rank's own sums, unless they hold the gradients of other ranks."""
        if self.eyes is not None:
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
            self.before[microbatch] = self._parts()

    def _parts(self):
        """Copies of the recorded elements of the gradients, one for each parameter; None where they are not seen."""
        is_read = self.chosen and self.training.is_alone() and not self.training.is_aside()
        gradients = self.eyes.gradients() if is_read else None
        if gradients is None:
            return None
        return [self._pick(number, gradients.get(number)) for number in self.chosen]

    def _pick(self, number, gradient):
        chosen = self.chosen[number]
        return torch.zeros(len(chosen)) if gradient is None else gradient[chosen.to(gradient.device)]
