"""Observes the buffers of PyTorch's `fully_shard` (FSDP2)."""

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import dense


class Eyes(BaseEyes):
    """Reads the unsharded gradients that FSDP2 has not reduced yet."""

    engine = "fsdp2"
    kind = "FSDPState"

    def __init__(self, objects):
        super().__init__(objects)
        self.groups = [group for state in objects for group in groups(state)]
        #: The `FSDPParam` of each parameter, by the parameter's number.
        self.shards = {}

    @staticmethod
    def leaves(it):
        shards = (shard for group in groups(it) for shard in group.fsdp_params)
        return [tensor for tensor in (getattr(shard, "_unsharded_param", None) for shard in shards) if tensor is not None]

    def open(self, index, emit):
        super().open(index, emit)
        try:
            shards = [shard for group in self.groups for shard in group.fsdp_params]
            self.shards = {index[id(it.sharded_param)]: it for it in shards if id(it.sharded_param) in index}
        except AttributeError as error:
            self.not_observed("accumulators and the leaves of the autograd graph", str(error))

    def describe(self):
        policies = {str(getattr(group, "mp_policy", "not known")) for group in self.groups}
        return "fully_shard", dict(policy=", ".join(sorted(policies)))

    def graph_index(self):
        # Autograd accumulates into the unsharded copies, which FSDP2 makes in the first forward.
        copies = {number: getattr(shard, "_unsharded_param", None) for number, shard in self.shards.items()}
        return {id(copy): number for number, copy in copies.items() if copy is not None}

    def is_sharded(self, model):
        # The model has unsharded parameters if FSDP2 has not sharded them again, but the optimizer has the shards.
        return True

    def gathers_for_forward(self):
        return True

    def has_reduced(self):
        return any(group.reduce_grads for group in self.groups)

    def gradients(self):
        """The unsharded gradients by parameter number, in the dtype of the reduction. The gradient of a single backward
        is in the dtype of the computation."""
        if not self.shards:
            return None
        held = ((number, dense(waiting(shard))) for number, shard in self.shards.items())
        return {number: gradient for number, gradient in held if gradient is not None}


def groups(state):
    """The parameter groups of a module: several groups from torch 2.12 on, at most one group before."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    group = getattr(state, "_fsdp_param_group", None)
    return [group] if group is not None else []


def waiting(shard):
    """The unsharded gradient of a parameter that has not been reduced yet; `None` if there is no such gradient."""
    copy = getattr(shard, "_unsharded_param", None)
    held = shard.unsharded_accumulated_grad
    return copy.grad if held is None and copy is not None else held
