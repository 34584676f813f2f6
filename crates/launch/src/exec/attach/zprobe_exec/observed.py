"""The mode that samples real gradients: gradients stay unchanged, and the training continues after the watched steps.

Some elements of each parameter are copied, from the gradient that autograd delivers in each backward and from the
gradient that the optimizer consumes. An optimizer's tensor may be a parameter or a DTensor shard. The place of another
tensor is the engine's layout, if the tensor's content agrees with it; else the content is searched in the parameters.
"""

import math
import random

import torch

from zprobe_exec import fragments, meshes
from zprobe_rank.placement import UNMISTAKABLE, Placement
from zprobe_rank.tensors import flat

# The number of consecutive elements in a run of samples.
RUN = 16

# The number of runs of samples in all parameters together, for each pair of ranks. This number suffices for 16
# microbatches of each rank in four steps, with twice as many elements as gradients.
RUNS = 8

# The number of different values, among the first elements of a parameter, that allows recognition by content.
DISTINCT = 8


class Observed:
    """The mode in which the leaves of autograd graphs keep their own gradients."""

    judges_first_step = False

    def __init__(self, training):
        self.training, self.seed = training, training.settings["seed"]
        self.steps = training.settings["observe"] + 1
        self.columns = math.inf
        # The least number of runs in a parameter, which grows with the number of ranks, so that each shard has some
        # runs.
        self.count = 4 + training.world_size
        # The number of elements that share one run. A rank's partition, even if it is a part of a single parameter,
        # needs enough recorded elements for all gradients.
        self.spacing = max(sum(training.sizes.values()) // (RUNS * training.world_size**2), 1)
        self.order, self.runs, self.places = [], {}, {}
        self.samples, self.of_step = {}, {}

    def knows(self, name):
        """True for every parameter: in this mode each gradient can be sampled."""
        return True

    def gradient(self, name, gradient, count):
        """Copies samples of a leaf's gradient. Returns `None`, so that the gradient is not replaced."""
        meshes.refuse_partial(name, gradient)
        gradient = flat(gradient)
        key = (name, gradient.device)
        if key not in self.places:
            runs = self._runs_of(name, gradient.numel())
            place = torch.cat([torch.arange(first, end) for first, end in runs])
            self.places[key] = place.to(gradient.device)
        values = gradient[self.places[key]].to(torch.float32)
        self.samples[name] = self.samples[name] + values if name in self.samples else values
        return None

    def consumed(self, fragment, clipping):
        """The recorded elements of a gradient that an optimizer consumes, as they were before clipping."""
        return clipping.take_out(fragment.tensor, fragment.pick())

    def see_gradients(self):
        """Does nothing in this mode: the samples are taken while autograd delivers the gradients."""

    def after_backward(self):
        """Called after a backward: adds its samples to the present microbatch, if the microbatch is recorded."""
        code, samples = self.training.code, self.samples
        if self.training.has_code():
            known = self.of_step.setdefault(code, {})
            for name, values in samples.items():
                known[name] = known[name] + values if name in known else values
        self.samples = {}

    # Finding the places of optimizers' tensors in the first step.

    def reader(self):
        """`None`, because real gradients have no address stamps."""
        return None

    def segments(self, reader, tensor):
        """The segment of an optimizer's tensor, in a list; its `param` is `None` if the parameter is unknown so far."""
        training, size = self.training, flat(tensor).numel()
        name = training.names.get(id(tensor))
        if size and id(tensor) in training.gathered:
            return [dict(param=None, offset=0, len=size)]
        hint = fragments.whole_or_shard(tensor, training.params.get(name))
        if hint is None and size and getattr(tensor, "_is_flat_param", False):
            # The tensor is a shard of a FullyShardedDataParallel unit, whose shards all have the same length.
            hint = (name, training.rank % max(training.sizes[name] // size, 1) * size)
        return [dict(param=hint and hint[0], offset=hint[1] if hint else 0, len=size)] if size else []

    def choose_first(self, segments):
        """An empty choice: no gradient that is consumed in the first step is recorded."""
        return []

    def before_agreement(self):
        """Finds the places of those optimizers' tensors that are neither parameters nor shards."""
        held, contents = self.training.held.all, None
        for fragment in [it for it in held if any(segment["param"] is None for segment in it.segments)]:
            segments = self.training.softly("layouts of engines", self._laid_out, fragment.tensor)
            if segments is None:
                contents = contents or self._contents()
                segments = contents.locate(fragment.tensor)
            fragment.segments = segments

    def _laid_out(self, tensor):
        """The segments of an optimizer's tensor in the engine's layout; `None` if the layout is unknown, or if the
        tensor's content does not agree with the layout."""
        pieces, content = self.training.between.pieces(tensor), flat(tensor)
        if not pieces or sum(room for *_, room in pieces) > content.numel():
            return None
        segments, at = [], 0
        for parameter, offset, length, room in pieces:
            name = self.training.names.get(id(parameter))
            if name is None or not is_alike(content[at : at + length], own_elements(parameter, offset, length)):
                return None
            segments.append(dict(param=name, offset=offset, len=length))
            segments.append(dict(param=None, offset=0, len=room - length))
            at += room
        segments.append(dict(param=None, offset=0, len=content.numel() - at))
        return [segment for segment in segments if segment["len"]]

    def _contents(self):
        leaves = {name: leaf for name, leaf in self.training.leaves.hooked.values() if name is not None}
        sizes = {name: param.numel for name, param in self.training.params.items()}
        return Contents(leaves, sizes, self.training.rank, self.training.world_size)

    def after_first_step(self, params, microbatches):
        """Fixes the elements that are recorded from now on, and records the gradients of the first step."""
        self.columns, self.order = microbatches, list(params)
        for name, param in params.items():
            self._runs_of(name, param.numel)
        for fragment in self.training.held.all:
            fragment.choose(self._choose)
        self.training.between.choose(params, self._choose)
        self.record(0)

    def _runs_of(self, name, size):
        """The runs (first, end) of recorded elements of a parameter, the same on all ranks."""
        if name not in self.runs:
            share = size // (self.count + size // self.spacing)
            if share <= RUN:
                self.runs[name] = [(0, size)]
            else:
                place = random.Random("%d %s" % (self.seed, name))
                starts = [first + place.randrange(share - RUN) for first in range(0, size - share + 1, share)]
                self.runs[name] = [(start, start + RUN) for start in starts]
        return self.runs[name]

    def _choose(self, segments):
        chosen, start = [], 0
        for segment in segments:
            if segment["param"] is not None:
                offset, end = segment["offset"], segment["offset"] + segment["len"]
                for first, last in self.runs[self.order[segment["param"]]]:
                    first, last = max(first, offset), min(last, end)
                    if first < last:
                        piece = dict(param=segment["param"], offset=first, len=last - first)
                        chosen.append((start + first - offset, piece))
            start += segment["len"]
        return chosen

    def record(self, step):
        """Emits the samples of the step's local gradients, a buffer for each microbatch."""
        for code, samples in sorted(self.of_step.items()):
            parts = []
            for name in self.order:
                length = sum(end - first for first, end in self.runs[name])
                values = samples.get(name)
                parts.append(torch.zeros(length) if values is None else values.to("cpu", non_blocking=False))
            values = torch.cat(parts)
            # Gradients overflow until dynamic loss scaling has found its scale, and are left out.
            if code < self.columns and bool(values.isfinite().all()):
                self.training.channel.buffer("local-gradient", "full", values, step=step, microbatch=code)
        self.of_step = {}

    def forget(self):
        """Drops the samples of the present step, which begins again."""
        self.of_step = {}

    def end(self):
        """Removes all hooks and drops all samples, so that the training continues without zprobe."""
        self.training.release()
        self.training.held = self.training.asides.held = fragments.Fragments()
        self.training.roots, self.places, self.samples, self.of_step = {}, {}, {}, {}


def own_elements(parameter, offset, length):
    """The `length` elements of a parameter from `offset` on; if ZeRO-3 has cut the parameter, the first elements of
    this rank's shard."""
    shard = getattr(parameter, "ds_tensor", None)
    return flat(parameter)[offset : offset + length] if shard is None else flat(shard)[:length]


def is_alike(master, content):
    """True if the first and the last elements of master weights round to the content of a parameter."""
    if len(master) != len(content) or fragments.is_freed(master) or fragments.is_freed(content):
        return False
    ends = ((it[:UNMISTAKABLE], it[-UNMISTAKABLE:]) for it in (master, content))
    return all(torch.equal(one.to("cpu", other.dtype), other.cpu()) for one, other in zip(*ends))


class Contents:
    """The index of parameters by content, for parameters with enough different values to be recognised."""

    def __init__(self, leaves, sizes, rank, world_size):
        """`leaves` has the leaf tensors by name; `sizes` has the number of elements of each parameter, by name and in
        order."""
        order = list(sizes)
        self.order, self.origins, values = order, {}, {}
        for name, leaf in leaves.items():
            # If ZeRO-3 has cut a parameter, the leaf is empty, and `ds_tensor` holds this rank's shard.
            shard = getattr(leaf, "ds_tensor", None)
            content = flat(leaf if shard is None else shard)
            if fragments.is_freed(content):
                # FSDP2 has freed the storage of the whole parameter.
                continue
            if shard is None and content.numel() != sizes.get(name):
                continue
            origin = 0 if shard is None else rank * content.numel()
            # All shards have the same length, so that the shards of the last ranks may end with padding.
            content = content[: max(sizes.get(name, 0) - origin, 0)]
            if name in order and len(content[:64].unique()) >= DISTINCT:
                index = order.index(name)
                values[index], self.origins[index] = content, origin
        self.dtype = next((content.dtype for content in values.values()), torch.float32)
        self.placement = Placement(values, rank, world_size) if values else None

    def locate(self, tensor):
        """The segments of an optimizer's tensor of master weights, which are rounded to the dtype of the parameters for
        the search."""
        content = flat(tensor)
        if self.placement is None:
            return [dict(param=None, offset=0, len=content.numel())]
        segments = self.placement.locate(content.to(self.dtype))
        for segment in segments:
            if segment["param"] is None or segment["len"] < UNMISTAKABLE:
                segment.update(param=None, offset=0)
            else:
                segment["offset"] += self.origins[segment["param"]]
                segment["param"] = self.order[segment["param"]]
        return segments
