"""The sending end of a channel: events as JSON lines, buffers bit for bit."""

import base64
import ctypes
import hashlib
import json
import math
import os
import time

import torch

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Channel:
    """Writer of the records of one sender; `rank` is None for the host."""

    def __init__(self, run, rank, fd):
        self.run, self.rank, self.fd, self.seq = run, rank, fd, 0
        self.digests = []
        self.selection = None  # The selection of buffers; without one all are recorded.

    def emit(self, type, **fields):
        """Writes an event immediately and in one piece, so that it survives the death of this process."""
        event = dict(type=type, **fields)
        record = dict(v=1, run=self.run, rank=self.rank, seq=self.seq, t_ns=time.time_ns(), event=event)
        self.seq += 1
        data = memoryview((json.dumps(record, allow_nan=False) + "\n").encode())
        while data:
            data = data[os.write(self.fd, data) :]

    def buffer(self, point, layout, tensor, step=None, microbatch=None, norm=None):
        """Records a flat tensor, and remembers its digest for the in-band exchange.

        `norm` is that of the whole buffer, where the tensor holds samples of it.
        """
        if self.selection and not self.selection.has(point, step, microbatch):
            return
        tensor = tensor.detach().to("cpu").contiguous()
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
        if not self.selection or self.selection.has_content(point):
            payload["data"] = base64.b64encode(data).decode()
        self.emit("buffer", step=step, microbatch=microbatch, point=point, layout=layout, payload=payload)

    def take_digest(self):
        """Combined digest of the buffers since the last call, as a signed 64-bit number."""
        combined = hashlib.blake2b("".join(self.digests).encode(), digest_size=8).digest()
        self.digests = []
        return int.from_bytes(combined, "big", signed=True)


def finite(number):
    """The number, or None if JSON has no word for it."""
    return number if math.isfinite(number) else None
