"""PyTorch's DistributedDataParallel."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from zprobe_rank.engines.base import BaseEngine, flat_gradients

COMM_HOOKS = {
    "fp16-compress": default_hooks.fp16_compress_hook,
    "bf16-compress": default_hooks.bf16_compress_hook,
}


class Engine(BaseEngine):
    """DDP with gradient accumulation under `no_sync`, as its documentation has it."""

    def set_up(self):
        options = self.spec["ddp"]
        self.ddp = DistributedDataParallel(
            self.model,
            bucket_cap_mb=options["bucket_cap_mb"],
            find_unused_parameters=options["find_unused_parameters"],
            static_graph=options["static_graph"],
            gradient_as_bucket_view=options["gradient_as_bucket_view"],
        )
        if options["comm_hook"] != "none":
            self.ddp.register_comm_hook(None, COMM_HOOKS[options["comm_hook"]])
        self.optimizer = self.make_optimizer(self.trainable())
        self.norm = None

    def describe(self):
        logged = self.ddp._get_ddp_logging_data()
        return type(self.ddp).__name__, {name: str(value) for name, value in logged.items()}

    def accumulation(self, final):
        return super().accumulation(final) if final else self.ddp.no_sync()

    def forward(self, *data):
        return self.ddp(*data)

    def backward(self, loss):
        (loss / self.spec["gradient_accumulation_steps"]).backward()

    def step(self, boundary):
        if not boundary:
            return
        limit = self.spec["gradient_clipping"]
        if limit > 0:
            self.norm = torch.nn.utils.clip_grad_norm_(self.trainable(), limit).item()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulated(self, microbatch):
        boundary = microbatch + 1 == self.spec["gradient_accumulation_steps"]
        return None if boundary else flat_gradients(self.model.parameters())

    def before_step(self):
        return flat_gradients(self.model.parameters())

    def gradient_norm(self):
        return None if self.norm is None else (self.norm, self.spec["gradient_clipping"])
