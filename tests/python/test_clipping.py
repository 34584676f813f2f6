"""Tests that clipping by value is undone in recorded gradients, and that a clipping of only some parameters is seen."""

import pathlib
import sys
import types
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import in_vain  # noqa: E402
from zprobe_exec.clipping import Clipping  # noqa: E402
from zprobe_exec.fragments import Fragment, Fragments  # noqa: E402


class ByValue(unittest.TestCase):
    def test_elements_that_were_cut_off_are_told_as_they_were(self):
        tensor = torch.nn.Parameter(torch.zeros(6))
        fragment = Fragment(tensor, [dict(param=0, offset=0, len=6)], None)
        fragment.choose(lambda segments: [(1, dict(param=0, offset=1, len=4))])
        held = Fragments()
        held.adopt([fragment], [])
        clipping = Clipping(types.SimpleNamespace(held=held))
        tensor.grad = torch.tensor([9.0, 0.5, -7.0, 1.0, 3.0, 9.0])
        begun = clipping.begin_by_value([tensor])
        torch.nn.utils.clip_grad_value_([tensor], 1.0)
        clipping.end_by_value(begun)
        tensor.grad[1] = 0.25  # A later change of an unclipped element stays visible.
        self.assertEqual(clipping.take_out(tensor, fragment.pick()).tolist(), [0.25, -7.0, 1.0, 3.0])
        clipping.forget([tensor])
        self.assertEqual(clipping.take_out(tensor, fragment.pick()).tolist(), [0.25, -1.0, 1.0, 1.0])


class WithoutGradients(unittest.TestCase):
    def emitted(self, tensors):
        """The ways in which a call with these tensors had no effect, if an optimizer with other tensors steps."""
        emitted = []
        channel = types.SimpleNamespace(emit=lambda type, **fields: emitted.append(fields["how"]))
        clipping = types.SimpleNamespace(is_scaled=lambda: False)
        training = types.SimpleNamespace(
            names={}, channel=channel, clipping=clipping, backwards=1, microbatch=1, step=0, stepping=False
        )
        calls = in_vain.InVain(training)
        calls.see(tensors, [], dict(at=None, by=None))
        calls.before_step(types.SimpleNamespace(param_groups=[]), [torch.zeros(2)], lambda tensor: None)
        calls.before_backward()
        return emitted

    def test_master_weights_that_require_no_gradient_may_have_one(self):
        master = torch.zeros(2)
        self.assertEqual(self.emitted([master]), ["no-gradient"])
        master.grad = torch.ones(2)
        self.assertEqual(self.emitted([master]), [])


class InPart(unittest.TestCase):
    def left_out(self, groups, clipped):
        """The names of the parameters that an optimizer steps with, and that a call with the parameters `clipped` has
        not clipped."""
        emitted = []
        channel = types.SimpleNamespace(emit=lambda type, **fields: emitted.append(fields))
        tensors = [it for group in groups for it in group["params"]]
        names = {id(it): str(number) for number, it in enumerate(tensors)}
        training = types.SimpleNamespace(names=names, channel=channel, backwards=1, microbatch=1, step=0, stepping=False)
        calls = in_vain.InVain(training)
        calls.see([tensors[number] for number in clipped], [], dict(at=None, by=None))
        calls.before_step(types.SimpleNamespace(param_groups=groups), tensors, lambda tensor: None)
        return [it["left"] for it in emitted if it["how"] == "in-part"]

    def test_what_a_call_has_left_out_of_a_group_is_told(self):
        params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
        for it in params[:3]:
            it.grad = torch.ones(2)
        one, two = [dict(params=params)], [dict(params=params[:2]), dict(params=params[2:])]
        self.assertEqual(self.left_out(one, [0, 1]), [["2"]])
        self.assertEqual(self.left_out(two, [0, 2]), [["1"]])
        # Clipped are all parameters with a gradient, a whole group of two, and no parameter at all.
        for groups, clipped in ((one, [0, 1, 2]), (two, [0, 1]), (one, [])):
            self.assertEqual(self.left_out(groups, clipped), [])
