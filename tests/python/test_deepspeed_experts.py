"""Tests that each rank's expert of the coded model gets the data of every rank, through DeepSpeed's all-to-all."""

import importlib.util
import multiprocessing
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
DATA = [torch.tensor([1.0, 2.0, -3.0, 4.0]), torch.tensor([5.0, 0.0, 7.0, -2.0])]


def expert(rank, store, results):
    """Runs one rank, and puts the rank's answer and the gradient of its expert into `results`."""
    from zprobe_rank.engines.deepspeed.script import avoid_compiling, deepspeed
    from zprobe_rank.engines.deepspeed.experts import place_experts

    avoid_compiling()
    torch.set_num_threads(1)
    os.environ["LOCAL_SIZE"] = str(RANKS)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    model = nn.Module()
    model.expert = nn.Module()
    model.expert.weight = nn.Parameter(torch.full((2, 2), 1.0 + rank))
    place_experts(model, "expert.weight", RANKS)
    model.expert.set_deepspeed_parallelism()
    answer = model.expert(DATA[rank].reshape(2, 2))
    # Each rank has another factor, which shows whether the gradients return to the ranks that sent the data.
    (answer * (1 + rank)).sum().backward()
    results.put((rank, answer.tolist(), model.expert.weight.grad.reshape(-1).tolist()))
    dist.destroy_process_group()


@unittest.skipUnless(importlib.util.find_spec("deepspeed"), "needs DeepSpeed")
class ExpertsTest(unittest.TestCase):
    def test_an_expert_answers_every_rank_and_its_gradient_is_of_every_ranks_data(self):
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        with tempfile.TemporaryDirectory() as directory:
            arguments = directory + "/store", results
            ranks = [context.Process(target=expert, args=(rank, *arguments)) for rank in range(RANKS)]
            for process in ranks:
                process.start()
            found = sorted(results.get(timeout=120) for _ in ranks)
            for process in ranks:
                process.join()
        gradient = (DATA[0] + 2 * DATA[1]).tolist()
        for rank, answer, of_weight in found:
            # The weights of one expert are ones, and the weights of the other expert are twos.
            self.assertEqual(answer, [3 * DATA[rank].sum().item()])
            self.assertEqual(of_weight, gradient)

    def test_the_optimizer_has_experts_in_a_group_of_their_own(self):
        from zprobe_rank.engines.deepspeed.script import groups_for_optimizer
        from zprobe_rank.engines.deepspeed.experts import Experts

        weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        Experts(weight, RANKS)
        shared, experts = groups_for_optimizer([weight, other])
        self.assertEqual([id(p) for p in shared["params"]], [id(other)])
        self.assertEqual([id(p) for p in experts["params"]], [id(weight)])
        self.assertEqual((experts["moe"], experts["name"]), (True, "ep_size_2"))


if __name__ == "__main__":
    unittest.main()
