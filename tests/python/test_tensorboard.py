"""Tests that the events of a run can be read by TensorBoard: scalars, pictures of matrices, and the report."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zlib

SCRIPT = pathlib.Path(__file__).parents[2] / "crates/lab/src/tensorboard/write_events.py"

RUN = {
    "time": 1000.5,
    "report": "## zprobe: FINDINGS\n\nagain: zprobe run --ga 2\n",
    "scalars": [["norm/reduced gradient/rank 0", 0, 1001.0, 1.5], ["norm/reduced gradient/rank 0", 1, 1002.0, 2.5]],
    "pictures": [["weights/optimizer's input/rank 0", 1, 1002.0, [["#ffffff", "#1b63a8", "#e9ecef"]]]],
}


def written(directory):
    """The accumulator of the events in a directory, after an export into it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = [sys.executable, str(SCRIPT), directory]
    subprocess.run(command, input=json.dumps(RUN), text=True, check=True)
    return EventAccumulator(directory).Reload()


def pixels(data):
    """The lines of a PNG file without filters and with one chunk of data, each as the bytes of its pixels."""
    width = int.from_bytes(data[16:20], "big")
    start = data.index(b"IDAT")
    length = int.from_bytes(data[start - 4 : start], "big")
    raw = zlib.decompress(data[start + 4 : start + 4 + length])
    lines = [raw[at : at + 1 + 3 * width] for at in range(0, len(raw), 1 + 3 * width)]
    assert all(line[0] == 0 for line in lines)
    return [[line[1 + 3 * x : 4 + 3 * x].hex() for x in range(width)] for line in lines]


@unittest.skipUnless(importlib.util.find_spec("tensorboard"), "tensorboard is not installed")
class Events(unittest.TestCase):
    def test_scalars_have_their_steps_times_and_values(self):
        with tempfile.TemporaryDirectory() as directory:
            events = written(directory).Scalars("norm/reduced gradient/rank 0")
        self.assertEqual([(it.step, it.wall_time, it.value) for it in events], [(0, 1001.0, 1.5), (1, 1002.0, 2.5)])

    def test_a_matrix_is_a_picture_with_a_square_for_each_weight(self):
        with tempfile.TemporaryDirectory() as directory:
            (image,) = written(directory).Images("weights/optimizer's input/rank 0")
        lines = pixels(image.encoded_image_string)
        self.assertEqual((image.step, image.width, image.height), (1, len(lines[0]), len(lines)))
        squares = [colour for at, colour in enumerate(lines[10]) if at == 0 or lines[10][at - 1] != colour]
        self.assertEqual(squares, ["ffffff", "1b63a8", "ffffff", "e9ecef", "ffffff"])

    def test_the_report_is_a_text(self):
        with tempfile.TemporaryDirectory() as directory:
            (text,) = written(directory).Tensors("report")
        self.assertIn(b"again: zprobe run --ga 2", text.tensor_proto.string_val[0])

    def test_a_second_export_replaces_the_first(self):
        with tempfile.TemporaryDirectory() as directory:
            written(directory)
            events = written(directory).Scalars("norm/reduced gradient/rank 0")
            files = list(pathlib.Path(directory).iterdir())
        self.assertEqual((len(events), len(files)), (2, 1))


if __name__ == "__main__":
    unittest.main()
