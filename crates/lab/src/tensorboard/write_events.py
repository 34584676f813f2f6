"""Writes the events of a run for TensorBoard, from zprobe's JSON on standard input, into the directory of the argument.

Needs only the package tensorboard. The name of the file is the same for each export of a run, so that a second export
replaces the first one; TensorBoard's own writers would add a file, and put the name of the host into its name.
"""

import json
import os
import struct
import sys
import zlib

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.record_writer import RecordWriter

SIDE, GAP = 24, 2
"""The side of a cell and the space around it, in pixels."""


def png(cells):
    """The picture of a matrix: its size in pixels, and the bytes of a PNG file."""
    height = GAP + len(cells) * (SIDE + GAP)
    width = GAP + max(len(line) for line in cells) * (SIDE + GAP)
    white = b"\xff\xff\xff"
    rows = [white * width] * GAP
    for line in cells:
        row = white * GAP + b"".join(bytes.fromhex(colour[1:]) * SIDE + white * GAP for colour in line)
        rows += [row.ljust(3 * width, b"\xff")] * SIDE + [white * width] * GAP

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return width, height, b"\x89PNG\r\n\x1a\n" + chunks


def values(run):
    """The time, the step and the value of each event."""
    tensor = TensorProto(dtype=DT_STRING, string_val=[run["report"].encode()])
    about = metadata.create_summary_metadata(display_name="report", description="")
    yield run["time"], 0, Summary.Value(tag="report", metadata=about, tensor=tensor)
    for tag, step, time, value in run["scalars"]:
        yield time, step, Summary.Value(tag=tag, simple_value=value)
    for tag, step, time, cells in run["pictures"]:
        width, height, data = png(cells)
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=data)
        yield time, step, Summary.Value(tag=tag, image=image)


def main():
    run = json.load(sys.stdin)
    path = os.path.join(sys.argv[1], f"events.out.tfevents.{int(run['time'])}.zprobe")
    with open(path, "wb") as file:
        events = RecordWriter(file)
        events.write(Event(wall_time=run["time"], file_version="brain.Event:2").SerializeToString())
        for time, step, value in values(run):
            events.write(Event(wall_time=time, step=step, summary=Summary(value=[value])).SerializeToString())


if __name__ == "__main__":
    main()
