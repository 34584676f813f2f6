"""Tests of ranks on GPUs that need no GPU: the choice of the device, and the order of recorded events."""

import io
import json
import os
import types
import unittest
from unittest import mock

import torch

from zprobe_rank import channel, device


def accelerator(count):
    """A mock of `torch.accelerator` that has `count` devices and records calls."""
    return mock.Mock(device_count=mock.Mock(return_value=count))


class Choice(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, device, "kind", device.kind)

    def test_on_the_host_nothing_is_chosen_and_nothing_started(self):
        device.choose("cpu")
        self.assertEqual(device.take(), torch.device("cpu"))
        self.assertEqual(device.name(device.take()), "cpu")
        self.assertFalse(device.is_started())

    def test_ranks_are_counted_round_where_there_are_more_than_devices(self):
        device.choose("cuda")
        found = accelerator(2)
        with mock.patch.object(torch, "accelerator", found, create=True), mock.patch.dict(os.environ, LOCAL_RANK="3"):
            self.assertEqual(device.take(), torch.device("cuda", 1))
        found.set_device_index.assert_called_once_with(1)

    def test_without_a_device_the_rank_says_so(self):
        device.choose("cuda")
        with mock.patch.object(torch, "accelerator", accelerator(0), create=True):
            with self.assertRaisesRegex(RuntimeError, "no device of type cuda"):
                device.take()

    def test_a_driver_that_was_started_is_noticed(self):
        device.choose("cuda")
        for answer, started in [(device.NOT_INITIALIZED, False), (0, True), (100, True)]:
            driver = types.SimpleNamespace(cuDeviceGetCount=lambda _: answer)
            with mock.patch("ctypes.CDLL", return_value=driver):
                self.assertEqual(device.is_started(), started, answer)
        with mock.patch("ctypes.CDLL", side_effect=OSError("not loaded")):
            self.assertFalse(device.is_started())


class Recording(unittest.TestCase):
    def test_what_a_device_holds_is_emitted_in_order_when_it_was_waited_for(self):
        read, write = os.pipe()
        events = channel.Channel("run", 0, write)
        on_device = types.SimpleNamespace(device=torch.device("cuda", 0))
        with mock.patch.object(device, "synchronize") as waited:
            events.later(lambda: events.emit("first"), on_device)
            events.later(lambda: events.emit("second"), on_device)
            events.later(lambda: events.emit("of-the-host"), torch.zeros(1))
            waited.assert_not_called()
            events.settle()
            events.settle()
            waited.assert_called_once_with()
        os.close(write)
        with io.open(read) as lines:
            records = [json.loads(line) for line in lines]
        self.assertEqual([it["event"]["type"] for it in records], ["of-the-host", "first", "second"])
        self.assertEqual([it["seq"] for it in records], [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
