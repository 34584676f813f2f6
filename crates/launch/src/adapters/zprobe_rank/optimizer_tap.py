"""Observes the input of the inner optimizer's step, in the same way under all engines."""

from zprobe_rank import sampler
from zprobe_rank.tensors import flat


class OptimizerTap:
    """Watches a torch optimizer through its official hook before `step`.

    An engine may call `step` several times for one of its own steps, each time with other fragments: DeepSpeed's
    stage 3 calls `step` once for each parameter group.
    """

    def __init__(self, optimizer, placement, hint, samples, channel):
        self.optimizer, self.placement, self.channel = optimizer, placement, channel
        self.sampler = samples
        self.hint = hint  # The function that guesses the place of a fragment in the model: `BaseEyes.hint`.
        self.fragments, self.segments = [], []
        self.places = []  # The segments of each fragment. They may be known before the tap meets the fragment.
        self.held = []  # The recorded elements of each fragment, as of the last record or the first sight.
        self.chosen = []  # The indices of the recorded elements in each fragment; `None` records all.
        self.index = {}
        self.announced = 0
        self.consumed = {}
        self.microbatch = 0  # The number of the microbatch whose backward ran last.
        self.called = set()  # The numbers of the microbatches after which the engine called the optimizer.
        self.active = False
        optimizer.register_step_pre_hook(self._before_step)

    def activate(self, fragments=()):
        """Begins to watch the optimizer. Earlier steps are ignored: some engines step with zeros during setup.
        `fragments` are tensors that the optimizer is going to hold, in the order of its steps."""
        self.active = True
        self._meet([*fragments, *self._held()])
        self._announce()

    def follow(self, tap):
        """Prepares the tap for an engine that goes on from a checkpoint of the engine that `tap` watched. The new
        engine lays out the model as the engine before did. Trained values of its fragments are not recognised."""
        self.places, self.announced = list(tap.places), tap.announced

    def record(self, step):
        """Records the gradients that the optimizer consumed since the last call. If the optimizer took no step, no
        input is recorded."""
        self._announce()
        self.channel.emit("optimizer-called", step=step, microbatches=sorted(self.called))
        self.called = set()
        if self.consumed:
            fragments = range(len(self.fragments))
            gradients = [self.consumed.get(index) or self.held[index].nothing() for index in fragments]
            sampler.emit(self.channel, "optimizer-input", "partition", gradients, step=step)
            self.consumed = {}
        self.held = [self._pick(fragment, index) for index, fragment in enumerate(self.fragments)]
        if self.held:
            sampler.emit(self.channel, "master-weights", "partition", self.held, step=step)

    def _before_step(self, optimizer, args, kwargs):
        if not self.active:
            return
        self.called.add(self.microbatch)
        self._meet(self._held())
        for group in optimizer.param_groups:
            for fragment in group["params"]:
                if fragment.grad is None or id(fragment) not in self.index:
                    continue
                index = self.index[id(fragment)]
                gradient = self._pick(fragment.grad, index)
                if index in self.consumed:
                    # The optimizer has stepped twice with the fragment, which for SGD equals one step with the sum.
                    gradient = self.consumed[index] + gradient
                self.consumed[index] = gradient

    def _pick(self, tensor, index):
        """The recorded elements of a tensor with the layout of fragment `index`."""
        return self.sampler.pick(flat(tensor), self.chosen[index])

    def _held(self):
        """The tensors that the optimizer holds now."""
        return [fragment for group in self.optimizer.param_groups for fragment in group["params"]]

    def _meet(self, fragments):
        """Registers tensors of the optimizer before their first step."""
        for fragment in fragments:
            if id(fragment) in self.index or flat(fragment).numel() == 0:
                continue
            self.index[id(fragment)] = len(self.fragments)
            # The list keeps the fragment alive, so that its `id` is not reused for another tensor.
            self.fragments.append(fragment)
            segments = self._locate(fragment)
            self.segments.extend(segments)
            self.chosen.append(self.sampler.index(segments))
            self.held.append(self._pick(fragment, len(self.fragments) - 1))

    def _locate(self, fragment):
        """The segments of the fragment that the tap meets."""
        number, size = len(self.fragments) - 1, flat(fragment).numel()
        if number == len(self.places):
            self.places.append(self.placement.locate(flat(fragment), self.hint(fragment)))
        if sum(segment["len"] for segment in self.places[number]) != size:
            raise RuntimeError("the new optimizer holds %d elements in place of its fragment %d" % (size, number))
        return self.places[number]

    def _announce(self):
        """Emits the layout of new fragments, and their content before the first step."""
        if self.announced < len(self.fragments):
            self.announced = len(self.fragments)
            self.channel.emit("layout", layout="partition", segments=self.segments)
            self.sampler.announce(self.channel, "partition", self.segments)
            sampler.emit(self.channel, "master-weights", "partition", self.held)
