"""What can be seen of PyTorch's `fully_shard` (FSDP2)."""

import torch

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import flat


class Eyes(BaseEyes):
    """Gradients are those of unsharded parameters, which wait for a reduction."""

    engine = "fsdp2"
    kind = "FSDPState"

    def __init__(self, objects, index):
        super().__init__(objects, index)
        self.groups = [group for state in objects for group in groups(state)]
        #: FSDP2's own record of each parameter, by number.
        self.shards = {
            index[id(shard.sharded_param)]: shard
            for group in self.groups
            for shard in group.fsdp_params
            if id(shard.sharded_param) in index
        }

    def describe(self):
        policies = {str(group.mp_policy) for group in self.groups}
        return "fully_shard", dict(policy=", ".join(sorted(policies)))

    def has_reduced(self):
        return any(group.reduce_grads for group in self.groups)

    def gradients(self):
        """In the dtype that is reduced in, or in that of the computation where nothing has been added up yet."""
        return {number: waiting(shard) for number, shard in self.shards.items()}


def groups(state):
    """A module's groups of parameters: several from torch 2.12 on, one or none before."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def waiting(shard):
    """The unsharded gradient that one parameter has gathered so far, flat; zeros if it has none."""
    held = shard.unsharded_accumulated_grad
    copy = getattr(shard, "_unsharded_param", None)
    if held is None and copy is not None:
        held = copy.grad
    if held is None:
        held = torch.zeros(shard._orig_size, device=shard.sharded_param.device)
    return flat(held)
