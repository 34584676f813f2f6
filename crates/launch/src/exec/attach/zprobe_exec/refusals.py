"""Refuses trainings that zprobe cannot diagnose, because zprobe cannot see how their gradients are accumulated or
reduced.

Each refusal raises `Unreadable`.
"""

import sys

import torch

from zprobe_exec import objects
from zprobe_exec.turns import Unreadable


def refuse_hidden_backward():
    """Refuses a compiled backward, and a backward that a CUDA graph replays, because hooks of leaves do not run."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiled, "compiled_autograd_enabled", False):
        raise Unreadable("compiled autograd replaces autograd's backward, and hides gradients; switch it off")
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise Unreadable("a CUDA graph replays the backward, whose gradients are seen only during the capture")


def refuse_compression():
    """Refuses DDP with a communication hook that compresses gradients lossily."""
    ddp = sys.modules.get("torch.nn.parallel.distributed")
    for it in objects.of(ddp.DistributedDataParallel) if ddp else []:
        for hook, _ in getattr(it, "_comm_hooks", []):
            name = getattr(hook, "__name__", "")
            if "powerSGD" in name or "quantization" in name:
                raise Unreadable("the DDP hook %s compresses gradients lossily: weights cannot be read" % name)
