"""The native engine of zprobe: a package with the program `zprobe-rank`, which `zprobe` finds and starts."""
