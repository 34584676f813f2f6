"""The ranks of real engines under zprobe.

The package needs only Python 3.8, torch 2.0 and the engine. It observes an engine by wrapping functions and by hooks,
and never changes the engine's results.
"""
