"""Ranks of real engines: DeepSpeed, DDP and FSDP2 under zprobe.

Needs Python 3.8, torch 2.0 and the engine; nothing else. An adapter observes by wrapping and by
hooks, and never changes what the engine computes.
"""
