"""The ranks of real engines under zprobe.

Needs Python 3.8, torch 2.0 and the engine; nothing else. It observes by wrapping and by hooks, and never changes what
the engine computes.
"""
