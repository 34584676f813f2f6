"""PyTorch's `fully_shard` (FSDP2)."""

import torch
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

from zprobe_rank.channel import DTYPES
from zprobe_rank.engines.base import BaseEngine


class Engine(BaseEngine):
    """Parameters in fp32, sharded on dimension 0; computed in the run's dtype."""

    model_dtype = torch.float32

    def set_up(self):
        spec = self.spec
        policy = MixedPrecisionPolicy(
            param_dtype=DTYPES[spec["dtype"]], reduce_dtype=DTYPES[spec["comm_dtype"]]
        )
        options = dict(
            mesh=init_device_mesh("cpu", (spec["world_size"],)),
            mp_policy=policy,
            reshard_after_forward=spec["fsdp2"]["reshard_after_forward"],
        )
        for block in getattr(self.model, "layers", self.model).children():
            fully_shard(block, **options)
        fully_shard(self.model, **options)
        self.optimizer = self.make_optimizer(self.trainable())
        self.norm = None

    def describe(self):
        return "fully_shard", {"policy": str(self.model._get_fsdp_state()._mp_policy)}

    def accumulation(self, final):
        self.model.set_requires_gradient_sync(final)
        return super().accumulation(final)

    def forward(self, *data):
        return self.model(*data)

    def backward(self, loss):
        (loss / self.spec["gradient_accumulation_steps"]).backward()

    def step(self, boundary):
        if not boundary:
            return
        limit = self.spec["gradient_clipping"]
        if limit > 0:
            norm = torch.nn.utils.clip_grad_norm_(self.trainable(), limit)
            self.norm = norm.full_tensor().item()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self):
        return [parameter.detach().full_tensor() for parameter in self.model.parameters()]

    def graph_index(self):
        # Autograd accumulates into copies that exist from forward to backward only.
        return {}

    def gradient_norm(self):
        return None if self.norm is None else (self.norm, self.spec["gradient_clipping"])
