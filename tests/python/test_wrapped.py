"""Tests that parameters are found which DistributedDataParallel does not reduce, because it was constructed before."""

import pathlib
import sys
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import wrapped  # noqa: E402


class LateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        wrapped.install()
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def setUp(self):
        self.module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        self.module[0].bias.requires_grad_(False)

    def late(self, change):
        ddp = DistributedDataParallel(self.module)
        change(self.module)
        late = {id(it) for it in wrapped.late()}
        return [name for name, param in ddp.module.named_parameters() if id(param) in late]

    def test_a_model_that_does_not_change_has_none(self):
        self.assertEqual(self.late(lambda module: None), [])

    def test_a_replaced_layer_is_late(self):
        def replace(module):
            module[1] = torch.nn.Linear(3, 1)

        self.assertEqual(self.late(replace), ["1.weight", "1.bias"])

    def test_an_unfrozen_parameter_is_late(self):
        self.assertEqual(self.late(lambda module: module[0].bias.requires_grad_(True)), ["0.bias"])

    def test_an_ignored_parameter_is_not_late(self):
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.module, ["1.bias"])
        self.assertEqual(self.late(lambda module: None), [])


if __name__ == "__main__":
    unittest.main()
