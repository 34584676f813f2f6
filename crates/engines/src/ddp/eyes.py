"""Observes the buffers of PyTorch's DistributedDataParallel."""

import torch

from zprobe_rank.eyes import BaseEyes

# The recorded facts that DDP logs about its construction, and later about its buckets. The other facts are timings, or
# differ by machine and rank.
CONSTRUCTION = (
    "backend_name",
    "bucket_cap_bytes",
    "bucket_sizes",
    "comm_hook",
    "dtypes",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "num_parameter_tensors",
    "static_graph",
    "total_parameter_size_bytes",
)
RUNTIME = (
    "can_set_static_graph",
    "has_rebuilt_buckets",
    "num_buckets_reduced",
    "prev_iteration_grad_ready_order_indices",
    "rebuilt_bucket_sizes",
    "rebuilt_per_bucket_param_indices",
    "unused_parameter_size",
)


class Eyes(BaseEyes):
    """Reads gradients from the attribute `grad` of the parameters. zprobe does not see DDP's reduction, which runs in
    C++."""

    engine = "ddp"
    kind = "DistributedDataParallel"

    def __init__(self, objects):
        super().__init__(objects)
        # True for a DDP module whose next backward will reduce, as its last forward with gradients has decided.
        self.synchronised = {id(ddp): ddp.require_forward_param_sync for ddp in objects}

    def arm(self):
        for ddp in (it for it in self.objects if hasattr(it, "_post_forward")):
            # DDP calls `_post_forward` at the end of each forward. A forward without gradients does not change this
            # decision.
            self.wrap(ddp, "_post_forward", after=lambda *_, ddp=ddp: self._see_forward(ddp))

    def describe(self):
        return type(self.objects[0]).__name__, self._logged(CONSTRUCTION)

    def describe_afterwards(self):
        return self._logged(CONSTRUCTION + RUNTIME)

    def reduced(self):
        # An optimizer that has stepped in the backward has consumed the gradients.
        parameters = (parameter for ddp in self.objects for parameter in ddp.parameters())
        return None if any(hasattr(it, "_in_backward_optimizers") for it in parameters) else super().reduced()

    def has_reduced(self):
        return any(self.synchronised.values())

    def _see_forward(self, ddp):
        if torch.is_grad_enabled():
            self.synchronised[id(ddp)] = ddp.require_backward_grad_sync

    def _logged(self, names):
        logged = self.objects[0]._get_ddp_logging_data()
        return {name: str(logged[name]) for name in names if name in logged}
