"""DeepSpeed, stages 0 to 3."""

import os
import sys

import torch

# Before the import: DeepSpeed looks for its accelerator then.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

from zprobe_rank.engines.base import BaseEngine, flat_gradients


class Engine(BaseEngine):
    """What `deepspeed.initialize` returns."""

    packages = ("deepspeed",)

    def set_up(self):
        avoid_compiling()
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        self.optimizer = self.make_optimizer(self.trainable())
        self.engine, self.wrapper, _, _ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=self.spec["deepspeed_config"]
        )

    def describe(self):
        return type(self.wrapper).__name__, {}

    def forward(self, *data):
        return self.engine(*data)

    def backward(self, loss):
        self.engine.backward(loss)

    def step(self, boundary):
        self.engine.step()

    def parameters(self):
        parameters = list(self.model.parameters())
        if self.spec["stage"] < 3:
            return [parameter.detach() for parameter in parameters]
        with deepspeed.zero.GatheredParameters(parameters):
            return [parameter.detach().clone() for parameter in parameters]

    def gradient_norm(self):
        norm = self.engine.get_global_grad_norm()
        return None if norm is None else (float(norm), float(self.engine.gradient_clipping()))


def avoid_compiling():
    """DeepSpeed compiles a shared-memory collective for CPU ranks, which takes minutes; without it
    they use torch's own Gloo."""
    module = sys.modules.get("deepspeed.comm.torch")
    if module is not None and hasattr(module, "build_shm_op"):
        module.build_shm_op = lambda: None
