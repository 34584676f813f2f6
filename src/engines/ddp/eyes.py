"""What can be seen of PyTorch's DistributedDataParallel."""

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import flat

# Facts that DDP logs about its construction, and then about its buckets. The rest is left out: it is
# timings, or differs by machine and rank.
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
    """Gradients are the parameters' own. The reduction is done in C++, where it is not seen."""

    engine = "ddp"
    kind = "DistributedDataParallel"

    def describe(self):
        return type(self.objects[0]).__name__, self._logged(CONSTRUCTION)

    def describe_afterwards(self):
        return self._logged(CONSTRUCTION + RUNTIME)

    def has_reduced(self):
        # Set at the end of a forward under gradients, unless that forward was under `no_sync`.
        return any(ddp.require_forward_param_sync for ddp in self.objects)

    def gradients(self):
        parameters = (it for ddp in self.objects for it in ddp.module.parameters() if it.grad is not None)
        return {self.index[id(it)]: flat(it.grad) for it in parameters if id(it) in self.index}

    def _logged(self, names):
        logged = self.objects[0]._get_ddp_logging_data()
        return {name: str(logged[name]) for name in names if name in logged}
