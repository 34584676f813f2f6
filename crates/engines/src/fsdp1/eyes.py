"""Observes the buffers of PyTorch's `FullyShardedDataParallel` (FSDP1)."""

import torch

# zprobe's own all-gathers are not recorded: only the functions in the namespace `torch.distributed` are watched.
from torch.distributed.distributed_c10d import all_gather_into_tensor

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import dense


class Eyes(BaseEyes):
    """Reads the shards of flat parameters, and the unsharded gradients that FSDP1 has not reduced yet.

    FSDP1 replaces the model's parameters, so these eyes must know the parameters' places, which only a `Run` has: in a
    user's script, zprobe sees no buffer of FSDP1 between backward and optimizer.
    """

    engine = "fsdp1"
    kind = "FullyShardedDataParallel"

    def __init__(self, objects, places):
        """`places` has a module, a name and a number of a parameter for each parameter of each module."""
        super().__init__(objects)
        self.handles = [unit._handle for unit in objects if unit._handle is not None]
        self.number_at = {(id(module), name): number for module, name, number in places}

    def describe(self):
        handles = self.handles[:1]
        facts = dict(units=str(len(self.objects)), flat_parameters=str(len(self.handles)))
        facts.update({"sharding_strategy": handle._sharding_strategy.name for handle in handles})
        facts.update({"use_orig_params": str(handle._use_orig_params) for handle in handles})
        return "FullyShardedDataParallel", facts

    def graph_index(self):
        # Autograd accumulates into the flat parameters, each of which has the gradients of several parameters.
        return {}

    def hint(self, parameters, fragment):
        for flat in (handle.flat_param for handle in self.handles):
            fragments = flat._params or [flat] * len(flat._param_infos)
            parts = zip(self._numbers(flat), flat._shard_param_infos, fragments)
            parts = [(number, part) for number, part, it in parts if it is fragment and part.in_shard]
            if parts:
                number, part = parts[0]
                runs = [(part.intra_param_start_idx, part.numel_in_shard)]
                return number, runs, [number for number, _ in parts[1:]]
        return None

    def parameters(self, model):
        found = {}
        for handle in self.handles:
            found.update(zip(self._numbers(handle.flat_param), handle._get_unflat_views(gathered(handle))))
        return [found[number] for number in sorted(found)]

    def gathers_for_forward(self):
        return True

    def is_sharded(self, model):
        return True

    def has_reduced(self):
        return any(unit._sync_gradients for unit in self.objects)

    def gradients(self):
        found = {}
        for handle in self.handles:
            flat = handle.flat_param
            numbers, gradient = self._numbers(flat), flat.grad
            if gradient is None or gradient.shape != flat._unpadded_unsharded_size:
                parts = [torch.zeros(numel, dtype=flat.dtype) for numel in flat._numels]
            else:
                parts = handle._get_unflat_views(gradient)
            found.update(zip(numbers, map(dense, parts)))
        return found

    def _numbers(self, flat):
        """The numbers of the parameters in a flat parameter, in its order."""
        return [self.number_at[id(info.module), info.param_name] for info in flat._param_infos]


def gathered(handle):
    """The whole flat parameter, gathered from the shards that the optimizers update."""
    flat = handle.flat_param
    shard = getattr(flat, "_local_shard", flat).detach()
    if not handle.uses_sharded_strategy:
        return shard
    content = shard.new_empty(shard.numel() * handle.process_group.size())
    all_gather_into_tensor(content, shard, group=handle.process_group)
    return content[: flat._unpadded_unsharded_size.numel()]
