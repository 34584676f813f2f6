"""The native engine of zprobe: the program `zprobe-rank`, which `zprobe` finds here and starts."""
