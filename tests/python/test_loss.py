"""Tests of the weights that the elements of a loss have in a backward, for several ways to write a loss."""

import pathlib
import sys
import types
import unittest

import torch
import torch.nn.functional as F

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec.arithmetic import Arithmetic  # noqa: E402
from zprobe_exec.loss import Loss, _handed_on  # noqa: E402


def weighed(make, seed=None):
    """The fields of the event about a loss that `make` computes from three rows of logits; the last row has no
    target."""
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    arithmetic = Arithmetic()
    arithmetic.install()
    try:
        root = make(logits * 1.0, torch.tensor([1, 2, -100]))
        loss = Loss()
        loss.watch([root])
        root.backward(seed)
    finally:
        arithmetic.release()
    return loss.take()


class Weights(unittest.TestCase):
    def test_a_mean_over_targets_weighs_them_alike_and_padding_not_at_all(self):
        (term,) = weighed(lambda logits, labels: F.cross_entropy(logits, labels))["terms"]
        self.assertEqual((term["of"], term["kind"], term["elements"]), ("tokens", "mean", 2))
        self.assertAlmostEqual(term["total"], 1.0, places=6)
        self.assertEqual(term["least"], term["most"])

    def test_constants_are_those_of_the_script_with_their_lines(self):
        def make(logits, labels):
            total = F.cross_entropy(logits, labels, reduction="sum")
            return 2 * total / torch.tensor(7.0)

        (term,) = weighed(make)["terms"]
        constants = {(it["factor"], it["divides"], it["kind"]) for it in term["constants"]}
        self.assertEqual(constants, {(2.0, False, "int"), (7.0, True, "tensor")})
        self.assertAlmostEqual(term["total"], 2 * 2 / 7, places=6)
        self.assertTrue(all("test_loss.py" in it["at"] for it in term["constants"]))
        (two,) = [it for it in term["constants"] if it["kind"] == "int"]
        self.assertTrue(two["written"])

    def test_elements_of_cached_features_are_told(self):
        def make(kept):
            def loss(logits, labels):
                rows = torch.cat([logits, kept(logits)]) @ torch.ones(5, 5)
                return F.cross_entropy(rows, torch.arange(6) % 5)

            return loss

        kinds = (torch.Tensor.detach, lambda logits: 2 * logits)
        self.assertEqual([weighed(make(kept))["terms"][0]["own_part"] for kept in kinds], [0, None])

    def test_elements_that_a_script_multiplies_with_nothing_are_counted(self):
        def make(logits, labels):
            losses = F.cross_entropy(logits, labels, reduction="none")
            hardness = (1 - torch.exp(-losses)).square().detach()
            return (hardness * losses).sum() / 2

        (term,) = weighed(make)["terms"]
        self.assertEqual((term["elements"], term["nonzero"]), (3, 2))
        (term,) = weighed(lambda logits, labels: (logits.square() * torch.rand(3, 5).add(1)).sum())["terms"]
        self.assertEqual((term["elements"], term["nonzero"]), (15, None))

    def test_a_learned_weight_of_a_loss_is_no_penalty(self):
        def kinds(weight):
            def make(logits, labels):
                squares = torch.nn.Parameter(torch.ones(2)).square()
                return weight(squares) * F.cross_entropy(logits, labels) + squares.sum()

            return sorted(it["of"] for it in weighed(make)["terms"])

        self.assertEqual(kinds(lambda squares: 1.0), ["parameters", "tokens"])
        self.assertEqual(kinds(lambda squares: (-squares.sum()).exp()), ["elements"])

    def test_elements_of_two_terms_are_told_for_one_only(self):
        def make(logits, labels):
            scales = logits.tanh()
            return (torch.ones(3, 5) * scales.exp()).square().mean() - scales.sum(-1).mean()

        self.assertEqual([it["name"] for it in weighed(make)["terms"]], ["Pow"])

    def test_a_term_that_a_sum_has_already_is_there_twice(self):
        def make(logits, labels):
            loss, penalty = F.cross_entropy(logits, labels), logits.square().mean()
            total = loss + 0.1 * penalty
            return total + loss

        answers, penalty = weighed(make)["terms"]
        self.assertEqual((answers["times"], penalty["times"]), (2, 1))

    def test_smoothing_that_is_written_out_has_its_term_once(self):
        def make(logits, labels):
            logs = logits.log_softmax(1)[:2]
            return (-0.9 * logs[torch.arange(2), labels[:2]] - 0.1 * logs.mean(1)).sum() / 2

        self.assertEqual([it["times"] for it in weighed(make)["terms"]], [1])

    def test_two_terms_of_the_same_log_probabilities_are_there_once(self):
        def make(logits, labels):
            rows = F.log_softmax(logits, -1)
            return F.nll_loss(rows, labels) - 0.1 * rows.mean()

        self.assertEqual([it["times"] for it in weighed(make)["terms"]], [1])

    def test_a_number_that_python_multiplied_with_a_count_is_told_apart(self):
        accumulate = 3

        def make(logits, labels):
            return F.cross_entropy(logits, labels) + accumulate * 0.1 * logits.square().mean()

        _, penalty = weighed(make)["terms"]
        (constant,) = penalty["constants"]
        self.assertEqual((constant["counted"], constant["times"]), (True, 3))

    def test_an_exponent_is_no_factor(self):
        temperature, world = 2.0, 2

        def make(logits, labels):
            return temperature**2 * F.cross_entropy(logits, labels) * world

        (term,) = weighed(make)["terms"]
        self.assertEqual({it["factor"] for it in term["constants"]}, {4.0, 2.0})
        self.assertFalse(any(it["written"] or it["times"] for it in term["constants"]))

    def test_terms_stand_beside_each_other(self):
        def make(logits, labels):
            return F.cross_entropy(logits, labels) + 0.5 * F.mse_loss(logits, torch.zeros(3, 5))

        entropy, error = weighed(make)["terms"]
        self.assertEqual((entropy["of"], error["of"], error["name"]), ("tokens", "elements", "mse"))
        self.assertAlmostEqual(error["total"], 0.5, places=6)

    def test_a_loss_that_is_multiplied_by_zero_says_so(self):
        found = weighed(lambda logits, labels: F.cross_entropy(logits, labels) * 0)
        self.assertEqual((found["zeroed"], found["terms"]), (True, []))

    def test_the_gradient_of_the_root_is_told(self):
        found = weighed(lambda logits, labels: F.cross_entropy(logits, labels), torch.tensor(4.0))
        self.assertEqual(found["seed"], 4.0)
        self.assertAlmostEqual(found["terms"][0]["total"], 4.0, places=6)


class Engines(unittest.TestCase):
    def test_an_output_of_an_engine_is_the_tensor_that_came_in_last(self):
        node = types.SimpleNamespace(next_functions=("parameter", "first", "second"), _input_metadata=(None, None))
        self.assertEqual(_handed_on(node, 1), "second")

    def test_a_node_that_does_not_tell_its_outputs_hands_on_every_tensor(self):
        node = types.SimpleNamespace(next_functions=("first", "second"))
        self.assertEqual(_handed_on(node, 1), "second")


class Again(unittest.TestCase):
    def test_a_running_total_takes_earlier_losses_backward_again(self):
        known, running, again = {}, 0.0, []
        for code in range(3):
            logits = torch.randn(2, 5, requires_grad=True)
            running = running + F.cross_entropy(logits, torch.tensor([1, 2]))
            loss = Loss()
            loss.watch([running])
            running.backward(retain_graph=True)
            loss.take()
            again.append(loss.again(known, code))
        self.assertEqual(again, [[], [0], [0, 1]])

    def test_losses_of_their_own_do_not(self):
        known = {}
        for code in range(2):
            root = F.cross_entropy(torch.randn(2, 5, requires_grad=True), torch.tensor([1, 2]))
            loss = Loss()
            loss.watch([root])
            root.backward()
            loss.take()
            self.assertEqual(loss.again(known, code), [])


if __name__ == "__main__":
    unittest.main()
