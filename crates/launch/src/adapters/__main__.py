"""The program that runs the ranks of real engines: `python rank-program`. See docs/protocol.md."""

from zprobe_rank.host import main

main()
