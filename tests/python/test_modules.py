"""Tests that blocks which run in a forward without being reached by a backward are found in each step."""

import pathlib
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.modules import Modules  # noqa: E402


class Detached(torch.nn.Module):
    def __init__(self, is_detached):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 2)
        self.is_detached = is_detached

    def forward(self, batch):
        hidden = self.body[:2](batch)
        return self.head(hidden.detach() if self.is_detached else hidden)


def unreached(is_detached, microbatches):
    """The paths of the unreached blocks in each of three steps. A step ends when the backward of the next step begins,
    and the last step ends when the optimizer has stepped."""
    model, modules = Detached(is_detached), Modules()
    names = {id(it): name for name, it in model.named_parameters()}
    reached = {name for name in names.values() if not is_detached or name.startswith("head")}
    roots, held = [model.body[:2], model], lambda it: True
    blocks = lambda: [path for path, *_ in modules.unreached(roots, names, reached, held)]
    told = []
    modules.install()
    try:
        for number in range(3 * microbatches):
            loss = model(torch.randn(5, 3)).sum()
            if number and number % microbatches == 0:
                told.append(sorted(blocks()))
            modules.see_backward()
            loss.backward()
            modules.see_backward()
        told.append(sorted(blocks()))
    finally:
        modules.release()
    return told


class Unreached(unittest.TestCase):
    def test_a_block_is_told_in_each_step_whatever_the_number_of_microbatches(self):
        for microbatches in (1, 2):
            self.assertEqual(unreached(True, microbatches), [["body.0", "body.1"]] * 3)
            self.assertEqual(unreached(False, microbatches), [[]] * 3)


class Pooled(torch.nn.Module):
    def __init__(self, uses):
        super().__init__()
        self.body, self.pooler, self.uses = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), uses

    def forward(self, batch):
        hidden = self.body(batch)
        return hidden, self.uses(self.pooler(hidden))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, content):
        return 2 * content

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class _DDPSink(torch.autograd.Function):
    """As the function of `DistributedDataParallel` with `find_unused_parameters`, through which all outputs pass."""

    @staticmethod
    def forward(ctx, content):
        return content.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Outputs(unittest.TestCase):
    def unused(self, uses, microbatches=2):
        """For each of three steps, whether the only unreached block, the pooler, has outputs that nothing uses."""
        model, modules, told = Pooled(uses), Modules(), []
        names = {id(it): name for name, it in model.named_parameters()}
        modules.install()
        try:
            for _ in range(3):
                for _ in range(microbatches):
                    hidden, _ = model(torch.randn(5, 3))
                    modules.see_backward()
                    hidden.sum().backward()
                    modules.see_backward()
                blocks = modules.unreached([model], names, {"body.weight", "body.bias"}, lambda it: True)
                told.append([(path, unused) for path, _, _, _, unused in blocks])
        finally:
            modules.release()
        return told

    def test_an_output_is_unused_if_no_function_without_a_gradient_takes_it(self):
        unused = (
            lambda it: it,
            lambda it: (it, it.shape, it.requires_grad),
            lambda it: torch.tanh(it)[0].add_(1),
            lambda it: torch.cat(it.softmax(-1).chunk(2)),
            lambda it: torch.tanh(_DDPSink.apply(it)),
        )
        for uses in unused:
            self.assertEqual(self.unused(uses), [[("pooler", False)], [("pooler", True)], [("pooler", True)]])

    def test_an_output_is_used_if_its_gradient_is_cut_off(self):
        used = (
            lambda it: it.detach(),
            lambda it: torch.tanh(it).data,
            lambda it: it.sum(),
            lambda it: it.sum().item(),
            lambda it: it.argmax(),
            lambda it: Doubled.apply(it[0]),
        )
        for uses in used:
            self.assertEqual(self.unused(uses), [[("pooler", False)]] * 3)
