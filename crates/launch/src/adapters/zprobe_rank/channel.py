"""The sending end of a channel: events as JSON lines, buffers bit for bit."""

import base64
import ctypes
import hashlib
import math

import torch

from zprobe_rank import device, records

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Channel(records.Records):
    """Writer of the records of one rank, buffers among them."""

    def __init__(self, run, rank, fd, seq=0):
        super().__init__(run, rank, fd, seq)
        self.digests = []
        self.selection = None  # The selection of buffers; without one all are recorded.
        self.waiting = []  # Calls that emit what a device has not handed over yet.

    def buffer(self, point, layout, tensor, step=None, microbatch=None, norm=None):
        """Records a flat tensor, and remembers its digest for the in-band exchange.

        `norm` is that of the whole buffer, where the tensor holds samples of it.
        """
        if self.selection and not self.selection.has(point, step, microbatch):
            return
        at = dict(step=step, microbatch=microbatch, point=point, layout=layout)
        held = on_host(tensor.detach())
        self.later(lambda: self._emit_buffer(held, norm, at), tensor)

    def later(self, emit, tensor):
        """Calls `emit`, which reads a tensor: at once on the host; on a device when `settle` has waited for it, so
        that recording does not make the engine's streams wait for each other more often than its own code does."""
        if tensor.device.type == "cpu":
            emit()
        else:
            self.waiting.append(emit)

    def settle(self):
        """Waits for the device, and emits what was recorded of it since the last call."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            device.synchronize()
        for emit in waiting:
            emit()

    def _emit_buffer(self, tensor, norm, at):
        # Through ctypes: `Tensor.numpy` has no bfloat16, and would need NumPy.
        data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        self.digests.append(digest)
        payload = dict(
            dtype=DTYPE_NAMES[tensor.dtype],
            numel=tensor.numel(),
            norm=finite(tensor.double().norm().item() if norm is None else norm),
            digest=digest,
        )
        if not self.selection or self.selection.has_content(at["point"]):
            payload["data"] = base64.b64encode(data).decode()
        self.emit("buffer", payload=payload, **at)

    def take_digest(self):
        """Combined digest of the buffers since the last call, as a signed 64-bit number."""
        combined = hashlib.blake2b("".join(self.digests).encode(), digest_size=8).digest()
        self.digests = []
        return int.from_bytes(combined, "big", signed=True)


def on_host(tensor):
    """The content of a tensor in memory of the host, once all that its device was asked to do before is done."""
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    # Behind what the current stream computes; what comes later does not change it.
    held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return held.copy_(tensor, non_blocking=True)


def finite(number):
    """The number, or None if JSON has no word for it."""
    return number if math.isfinite(number) else None
