"""Mixture of experts in the coded model: one DeepSpeed expert on each rank."""

from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import _AllToAll
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.utils import groups
from torch import nn


class Experts(MoE):
    """An MoE layer with as many experts as ranks: each rank holds one expert, and the data of every rank go to all
    experts.

    DeepSpeed looks for instances of its own MoE layer, which make the process groups. This class replaces the
    computation of that layer, whose gate multiplies with inexact probabilities.
    """

    def __init__(self, weight, world_size):
        nn.Module.__init__(self)
        self.ep_size = self.num_experts = world_size
        self.expert_group_name = "ep_size_%d" % world_size
        self.weight = weight
        # These attributes mark the parameter of an expert, as `Experts.__init__` in deepspeed/moe/experts.py does.
        weight.allreduce = False
        weight.group_name = self.expert_group_name

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_=False):
        """Makes the process groups of the experts; `deepspeed.initialize` calls this method."""
        groups._create_expert_and_data_parallel(
            self.ep_size, use_data_before_expert_parallel_=use_data_before_expert_parallel_
        )
        self.group = groups._get_expert_parallel_group(self.expert_group_name)

    def forward(self, x):
        """The sum of the inner products of this rank's data with the expert of each rank."""
        received = _AllToAll.apply(self.group, x.float().reshape(1, -1).repeat(self.ep_size, 1))
        answers = (self.weight.float().reshape(1, -1) * received).sum(dim=1)
        return _AllToAll.apply(self.group, answers).sum().reshape(1)


def place_experts(model, name, world_size):
    """Replaces the module of the parameter `name` by an expert. The module must have no other parameter."""
    module = name.rpartition(".")[0]
    setattr(model, module, Experts(model.get_parameter(name), world_size))


def groups_for_optimizer(parameters):
    """The parameter groups for the optimizer: DeepSpeed requires separate groups for the parameters of experts."""
    return split_params_into_different_moe_groups_for_optimizer(dict(params=list(parameters), name="parameters"))
