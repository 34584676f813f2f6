"""Trainings of which nothing can be said, because gradients go where the watch does not see them.

The error is `Unreadable` in each case.
"""

import sys

import torch

from zprobe_exec import objects
from zprobe_exec.turns import Unreadable


def refuse_hidden_backward():
    """Refuses a backward that is compiled, or recorded and replayed by a GPU: hooks of leaves see nothing."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiled, "compiled_autograd_enabled", False):
        raise Unreadable("compiled autograd takes the place of autograd's backward, whose gradients are not seen then")
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise Unreadable("a CUDA graph replays the backward, whose gradients are seen only while it is captured")


def refuse_fused_gradients(params):
    """Refuses kernels that add up the gradients of weights by themselves, as Megatron-LM's and Transformer
    Engine's do."""
    if any(getattr(it, "grad_added_to_main_grad", False) for it in params):
        raise Unreadable(
            "gradients of weights are added to main_grad within a kernel, where they are not seen; switch gradient "
            "accumulation fusion off"
        )


def refuse_compression():
    """Refuses a communication hook that loses a part of gradients on purpose."""
    ddp = sys.modules.get("torch.nn.parallel.distributed")
    for it in objects.of(ddp.DistributedDataParallel) if ddp else []:
        for hook, _ in getattr(it, "_comm_hooks", []):
            name = getattr(hook, "__name__", "")
            if "powerSGD" in name or "quantization" in name:
                raise Unreadable("%s compresses gradients with losses: weights cannot be read behind it" % name)
