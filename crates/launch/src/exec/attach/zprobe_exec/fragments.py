"""The tensors that the optimizers of this rank hold, and the gradients that they consume."""

import torch

from zprobe_rank.tensors import dense, flat


class Fragment:
    """A tensor that an optimizer updates, with the places of its elements in the model's parameters."""

    def __init__(self, tensor, segments, optimizer):
        # The tensor is kept alive, so that its `id` is not reused for another tensor.
        self.tensor, self.segments, self.optimizer = tensor, segments, optimizer
        self.chosen = None  # The indices of the recorded elements within the tensor.
        self.pieces = []  # The recorded elements as pieces of parameters.
        self.backward = None  # The recorded elements of the gradient after the last backward.
        self.stepped = False  # True if an optimizer has stepped with the fragment since the last record.
        self.first = None  # The gradient consumed in the first step; later only its recorded elements.
        self.factor = 1.0  # The factor by which the gradient of the first step was clipped.
        self.kept = 1.0  # The product of the clipping factors since, if the script never cleared that gradient.
        self.share = 1.0  # The share of the ranks that have kept that gradient in all steps so far.
        self.addresses = None  # A mask of the recorded elements that were part of an address in the first step.
        self.consumed = None  # The recorded elements of the gradients consumed since the last record.

    def params(self):
        """The parameters of which the fragment has elements."""
        return {segment["param"] for segment in self.segments} - {None}

    def choose(self, pick):
        """Fixes the recorded elements. `pick` chooses the pieces of given segments, and returns each piece with the
        place of its first element."""
        chosen = pick(self.segments)
        self.chosen = index(chosen)
        self.pieces = [piece for _, piece in chosen]

    def pick(self):
        """A copy of the recorded elements of the gradient, on the gradient's device; `None` without a gradient."""
        held = gradient(self.tensor)
        return None if held is None else held[self.chosen.to(held.device)]


class Fragments:
    """All fragments of this rank, in the order in which the optimizers first stepped with them."""

    def __init__(self):
        self.all, self.of = [], {}
        self.again = []  # The segments of tensors that are held by an optimizer a second time.

    def adopt(self, found, again):
        """Adds the new fragments `found`, and the segments of the fragments `again`, which are held a second time."""
        for fragment in found:
            self.of[id(fragment.tensor)] = fragment
            self.all.append(fragment)
        for fragment in again:
            self.again.extend(dict(segment) for segment in fragment.segments)

    def strays(self, names):
        """The number of tensors without a gradient that have no place in the model, or that an engine has replaced.
        `names` has the names of the model's tensors by `id`."""
        idle = [it for it in self.all if it.tensor.requires_grad and gradient(it.tensor) is None]
        is_placed = lambda it: any(segment["param"] is not None for segment in it.segments)
        return sum(not is_placed(it) or id(it.tensor) not in names for it in idle)

    def pieces(self):
        """The recorded pieces of all fragments, one after the other."""
        return [piece for fragment in self.all for piece in fragment.pieces]

    def name_by_index(self, indices):
        """Replaces the names of parameters in all segments by indices; `indices` has the index of each name."""
        for segment in self.segments():
            segment["param"] = indices.get(segment["param"])

    def segments(self):
        """The segments of all fragments, one after the other, followed by the segments that are held a second time."""
        return [segment for fragment in self.all for segment in fragment.segments] + self.again

    def after_backward(self):
        """Copies the gradients of all fragments after a backward, where the optimizer's tensors have gradients."""
        for fragment in self.all:
            fragment.backward = fragment.pick()

    def consume(self, parts):
        """Adds the gradients of an optimizer step to the record: pairs of a fragment and the recorded elements of its
        gradient, which are `None` without a gradient."""
        for fragment, part in parts:
            fragment.stepped = True
            if fragment.consumed is not None and part is not None:
                # An optimizer has stepped twice with the fragment, so that the sum of both gradients is recorded.
                part = fragment.consumed + part
            fragment.consumed = fragment.consumed if part is None else part

    def forget(self):
        """Drops the gradients that were copied since the last record."""
        for fragment in self.all:
            fragment.backward = fragment.consumed = None
            fragment.stepped = False

    def waits(self):
        """True if no optimizer has stepped with some fragment since the last record."""
        return not all(fragment.stepped for fragment in self.all)

    def record(self, channel, step, microbatch):
        """Emits the gradients that were copied since the last record, as the buffers of `step`."""
        if not any(fragment.stepped for fragment in self.all):
            self.forget()
            return
        left = [fragment.backward for fragment in self.all]
        if all(part is not None for part in left):
            channel.buffer("before-step", "partition", self._joined(left), step=step, microbatch=microbatch)
        consumed = [fragment.consumed for fragment in self.all]
        channel.buffer("optimizer-input", "partition", self._joined(consumed), step=step)
        self.forget()

    def _joined(self, parts):
        """The parts of all fragments in one tensor; a missing part is filled with zeros."""
        pairs = zip(parts, self.all)
        return joined([_zeros(it) if part is None else part for part, it in pairs])


def joined(parts):
    """The parts in one tensor on the host: in their common dtype if that can be recorded, else in fp32."""
    parts = [part.to("cpu") for part in parts]
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        parts = [part.to(torch.float32) for part in parts]
    return torch.cat(parts)


def _zeros(fragment):
    return torch.zeros(len(fragment.chosen), dtype=fragment.tensor.dtype)


def stride(length, count):
    """The distance between about `count` samples in a tensor of `length` elements. The distance is odd: codes repeat
    after a power of two, and a sum of codes may be 0 at the same place of each repetition."""
    return max(1, length // count) | 1


def is_freed(content):
    """True if an engine has freed the storage of a tensor, as FSDP2 does with whole parameters."""
    return content.untyped_storage().nbytes() < content.numel() * content.element_size()


def gradient(tensor):
    """The flat gradient of a tensor on this rank; `None` if there is no gradient, or if it is sparse or complex."""
    return dense(tensor.grad)


def is_finite(content):
    """True if all elements of a tensor are finite. A finite sum proves that all elements are finite, in a tenth of the
    time; only if the sum is not finite, each element is checked."""
    dtype = torch.float32 if content.dtype in (torch.float16, torch.bfloat16) else None
    return bool(content.sum(dtype=dtype).isfinite()) or bool(content.isfinite().all())


def whole_or_shard(tensor, named):
    """The place (name, offset) of a tensor that is the parameter `named` or this rank's shard of the parameter; `None`
    if the place is unknown, or if `named` is `None`."""
    if named is None:
        return None
    name = named.name
    if named.part is not None:
        if named.start is not None:
            return (name, named.start)
        return (name, 0) if flat(tensor).numel() == named.numel else None
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None:
        return (name, 0) if tensor.numel() == named.numel else None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    row = 1
    for side in tensor.shape[1:]:
        row *= side
    if list(shape[1:]) != list(tensor.shape[1:]):
        return None
    return (name, offset[0] * row if offset else 0)


def index(chosen):
    """The indices of all elements in `chosen`, which has pairs: the index of the first element of a piece, and the
    piece."""
    runs = [torch.arange(start, start + piece["len"]) for start, piece in chosen]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
