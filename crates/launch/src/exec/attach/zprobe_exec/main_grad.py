"""Observes the buffers in which Megatron-LM's wrappers add up gradients: `main_grad` of each parameter."""

from zprobe_rank.eyes import BaseEyes
from zprobe_rank.tensors import dense


class Eyes(BaseEyes):
    """Reads gradients from the attribute `main_grad` of the parameters."""

    kind = "_BaseDataParallel"

    def has_reduced(self):
        return any(self._reduces(it) for it in self.objects)

    def gradients(self):
        leaves = [it for holder in self.objects for it in self.leaves(holder) if id(it) in self.index]
        return {self.index[id(it)]: dense(it.main_grad) for it in leaves if hasattr(it, "main_grad")}

    @staticmethod
    def _reduces(holder):
        """True if the backward outside of `no_sync` reduces gradients."""
        groups = holder.bucket_groups + holder.expert_parallel_bucket_groups
        return holder.ddp_config.overlap_grad_reduce and any(it.is_last_microbatch for it in groups)
