"""Tests that the states before and after a checkpoint are compared element by element, and that each loss is named."""

import unittest

import torch

from zprobe_rank import checkpoint


def segment(param, offset, length):
    return dict(param=param, offset=offset, len=length)


def compared(saved, loaded, segments=(segment(0, 2, 3), segment(None, 0, 1), segment(1, 0, 2))):
    """The comparison of two tensors with the same segments."""
    [entry] = checkpoint.comparison(
        dict(it={0: (list(segments), saved)}), dict(it={0: (list(segments), loaded)}), torch.bfloat16
    )
    return entry


class CheckpointTest(unittest.TestCase):
    def test_equal_states_differ_in_nothing_and_padding_does_not_count(self):
        saved = torch.tensor([1.0, float("nan"), 3.0, 7.0, 5.0, 6.0])
        loaded = torch.tensor([1.0, float("nan"), 3.0, 8.0, 5.0, 6.0])
        self.assertEqual(compared(saved, loaded), dict(state="it", differing=[], rounded=False, numbers=None))

    def test_differing_elements_are_counted_by_parameter(self):
        entry = compared(torch.arange(6.0), torch.tensor([0.0, 9.0, 9.0, 3.0, 4.0, 9.0]))
        places = [dict(param=0, elements=2, first=3), dict(param=1, elements=1, first=1)]
        self.assertEqual((entry["differing"], entry["numbers"]), (places, dict(saved=1.0, loaded=9.0)))
        self.assertFalse(entry["rounded"])

    def test_rounded_elements_are_recognised(self):
        saved = torch.tensor([0.1, 1.0, 0.3, 0.0, 2.0, 0.7])
        self.assertTrue(compared(saved, saved.bfloat16().float())["rounded"])

    def test_the_step_of_an_optimizer_concerns_all_elements_of_its_fragment(self):
        entry = compared(torch.tensor([3.0]), torch.tensor([0.0]))
        self.assertEqual(entry["numbers"], dict(saved=3.0, loaded=0.0))
        self.assertEqual([place["param"] for place in entry["differing"]], [0, 1])

    def test_missing_state_counts_as_zeros(self):
        state = dict(it={0: ([segment(0, 0, 2)], torch.zeros(2)), 1: ([segment(1, 0, 1)], torch.ones(1))})
        [entry] = checkpoint.comparison(state, {}, torch.bfloat16)
        self.assertEqual(entry["differing"], [dict(param=1, elements=1, first=0)])
        self.assertEqual(entry["numbers"], dict(saved=1.0, loaded=0.0))

    def test_a_state_has_the_parameters_the_moments_and_the_numbers_of_the_engine(self):
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.AdamW([parameter])
        parameter.grad = torch.ones(2)
        optimizer.step()
        part = ([segment(0, 0, 2)], parameter)
        state = checkpoint.training_state([part], [], [part], optimizer, {"loss scale": 64})
        names = {"parameters", "loss scale"}
        names.update("optimizer.%s" % name for name in ("step", "exp_avg", "exp_avg_sq", "lr"))
        self.assertLessEqual(names, set(state))
        self.assertNotIn("master weights", state)
        optimizer.step()
        unlike = checkpoint.comparison(
            state, checkpoint.training_state([part], [], [part], optimizer, {"loss scale": 32}), torch.bfloat16
        )
        unlike = {entry["state"] for entry in unlike if entry["numbers"] is not None}
        self.assertEqual(unlike, names - {"optimizer.lr"})
