"""An expert on each rank, as DeepSpeed has it, in the coded model."""

from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import _AllToAll
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.utils import groups
from torch import nn


class Experts(MoE):
    """As many experts as ranks, of which each rank holds one; the data of every rank go to all of them.

    DeepSpeed looks for instances of its MoE layer, and has them make the process groups. The inside
    of that layer is left out: its gate multiplies with probabilities, which are not exact.
    """

    def __init__(self, weight, world_size):
        nn.Module.__init__(self)
        self.ep_size = self.num_experts = world_size
        self.expert_group_name = "ep_size_%d" % world_size
        self.weight = weight
        # Attributes that mark a parameter as an expert's: `Experts.__init__` in deepspeed/moe/experts.py.
        weight.allreduce = False
        weight.group_name = self.expert_group_name

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_=False):
        """Makes the process groups; `deepspeed.initialize` calls it."""
        groups._create_expert_and_data_parallel(
            self.ep_size, use_data_before_expert_parallel_=use_data_before_expert_parallel_
        )
        self.group = groups._get_expert_parallel_group(self.expert_group_name)

    def forward(self, x):
        """The inner products of this rank's data with each rank's expert, added up."""
        received = _AllToAll.apply(self.group, x.float().reshape(1, -1).repeat(self.ep_size, 1))
        answers = (self.weight.float().reshape(1, -1) * received).sum(dim=1)
        return _AllToAll.apply(self.group, answers).sum().reshape(1)


def place_experts(model, name, world_size):
    """Makes an expert of the parameter of this name, which is the only one of its module."""
    module = name.rpartition(".")[0]
    setattr(model, module, Experts(model.get_parameter(name), world_size))


def groups_for_optimizer(parameters):
    """The optimizer's groups, in which DeepSpeed requires experts to be separate."""
    return split_params_into_different_moe_groups_for_optimizer(dict(params=list(parameters), name="parameters"))
