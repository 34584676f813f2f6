"""Tests of the events that the training loop of an engine's script emits, also if a backward or a step fails."""

import json
import os
import unittest
from unittest import mock

import torch

from zprobe_rank import run as runs
from zprobe_rank.eyes import BaseEyes

PARAM = dict(name="weight", shape=[32], offset=0, trainable=True)

SPEC = dict(
    code_steps=None,
    dtype="fp32",
    gradient_accumulation_steps=2,
    gradient_clipping=0.0,
    model="coded",
    observe="full",
    optimizer=dict(type="sgd", lr=1.0),
    parameter_groups=1,
    recording=dict(ranks=None, steps=None, microbatches=None, sampled=False),
    seed=0,
    shapes=[],
    steps=1,
    world_size=1,
)

LOSS = dict(forward=[[1, 1]], without_gradient=[], detached_block=None, again=[], beside=[], managed=True)

WORKLOAD = dict(
    steps=[[dict(microbatches=2, losses=[LOSS])]],
    second_use=None,
    expert=None,
    unused_by_parity=[None, None],
    reversed_on_odd_ranks=False,
    frozen_alternating=None,
    infinite=None,
    output="logits",
    starts_differently=False,
)


class Channel:
    """A channel that keeps only the types of its events and the points of its buffers."""

    def __init__(self):
        self.seen = []

    def emit(self, type, **fields):
        phase = fields.get("phase")
        self.seen.append(phase or type)

    def buffer(self, point, layout, tensor, **_):
        self.seen.append(point)

    def later(self, emit, _tensor):
        emit()

    def settle(self):
        pass

    def take_digest(self):
        return 0


def train(run, fail_at=None):
    """A training loop without an engine, which raises an error at `backward` or `step` if `fail_at` names it."""
    model = run.build()
    optimizer = run.optimizer(run.trainable())
    run.watch(BaseEyes, [model], optimizer)
    for _ in run.steps():
        for microbatch in run.microbatches():
            for part in microbatch:
                loss = part.loss(model)
                (loss / run.accumulation_steps).backward()
                if fail_at == "backward":
                    raise RuntimeError("a backward that fails")
        with run.update():
            optimizer.step()
            if fail_at == "step":
                raise RuntimeError("a step that fails")


def events(fail_at=None):
    """The events of a training after the record of its starting parameters, and the error that it ends with, if any."""
    variables = dict(ZPROBE_PARAMS=json.dumps([PARAM]), ZPROBE_WORKLOAD=json.dumps(WORKLOAD))
    channel, error = Channel(), None
    gathers = mock.patch.object(runs.dist, "all_gather", lambda *_, **__: None)
    with mock.patch.dict(os.environ, variables), gathers, mock.patch.object(runs.collectives, "watch"):
        run = runs.Run(SPEC, 0, torch.device("cpu"), channel, None)
        try:
            train(run, fail_at)
        except RuntimeError as caught:
            error = caught
        run.end_backward()
    return channel.seen[channel.seen.index("parameters") + 1 :], error


MICROBATCH = ["forward", "loss", "graph-walked", "backward"]


class Loop(unittest.TestCase):
    def test_a_step_is_seen_from_its_first_forward_to_the_parameters_behind_it(self):
        found, error = events()
        self.assertIsNone(error)
        step = MICROBATCH + ["accumulator"] + MICROBATCH + ["before-step", "optimizer-step"]
        step += ["optimizer-called", "optimizer-input", "master-weights", "parameters", "step-timed", "digests"]
        self.assertEqual(found, step + ["digests-gathered"])

    def test_what_a_backward_has_left_is_recorded_also_where_it_fails(self):
        found, error = events("backward")
        self.assertIsNotNone(error)
        self.assertEqual(found, MICROBATCH + ["accumulator"])

    def test_what_the_optimizer_consumed_is_recorded_also_where_the_step_fails(self):
        found, error = events("step")
        self.assertIsNotNone(error)
        self.assertEqual(found[-3:], ["optimizer-called", "optimizer-input", "master-weights"])


if __name__ == "__main__":
    unittest.main()
