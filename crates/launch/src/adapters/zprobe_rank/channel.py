"""The sending end of a rank's channel to zprobe: events are JSON lines, and buffers are sent bit for bit."""

import base64
import ctypes
import hashlib
import math

import torch

from zprobe_rank import device, records

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Channel(records.Records):
    """Writes the records of one rank, including its buffers."""

    def __init__(self, run, rank, fd, seq=0):
        super().__init__(run, rank, fd, seq)
        self.digests = []
        self.selection = None  # The `Selection` of buffers to record; `None` records all buffers.
        self.waiting = []  # Functions that emit buffers whose copy to the host may not be complete.

    def buffer(self, point, layout, tensor, step=None, microbatch=None, norm=None):
        """Records a flat tensor, and keeps its digest for the exchange of digests between the ranks.

        `norm` is the norm of the whole buffer if the tensor holds only samples of the buffer, else `None`.
        """
        if self.selection and not self.selection.has(point, step, microbatch):
            return
        at = dict(step=step, microbatch=microbatch, point=point, layout=layout)
        held = on_host(tensor.detach())
        self.later(lambda: self._emit_buffer(held, norm, at), tensor)

    def later(self, emit, tensor):
        """Calls `emit`, which reads `tensor`: at once for a tensor on the host, in the next `settle` for a tensor on
        a device. So recording adds no synchronisation to the engine's streams."""
        if tensor.device.type == "cpu":
            emit()
        else:
            self.waiting.append(emit)

    def settle(self):
        """Waits for the device, and calls all functions that `later` has postponed since the last call."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            device.synchronize()
        for emit in waiting:
            emit()

    def _emit_buffer(self, tensor, norm, at):
        # ctypes reads the bytes, because `Tensor.numpy` does not support bfloat16 and needs NumPy.
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
        """The combined digest of the buffers recorded since the last call, as a signed 64-bit number."""
        combined = hashlib.blake2b("".join(self.digests).encode(), digest_size=8).digest()
        self.digests = []
        return int.from_bytes(combined, "big", signed=True)


def on_host(tensor):
    """The content of a tensor in host memory; valid once the device has finished all work queued before this call."""
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    # The copy is queued on the current stream: later work on the stream does not change the copied values.
    held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return held.copy_(tensor, non_blocking=True)


def finite(number):
    """The number; `None` if the number is infinite or NaN, which JSON cannot represent."""
    return number if math.isfinite(number) else None
