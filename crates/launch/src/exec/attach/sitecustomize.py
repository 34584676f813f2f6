"""Starts zprobe inside a Python process of the user's command.

Python imports this module because its directory comes first on PYTHONPATH. The module runs the user's `sitecustomize`,
which it hides, and waits for the import of torch. An error of zprobe must not disturb the user's program: zprobe prints
the error, and the program continues as without zprobe.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_hidden_module():
    """Runs the next `sitecustomize` on the path, which Python would have run without zprobe."""
    path = [place for place in sys.path if os.path.abspath(place or os.curdir) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        ours, sys.modules["sitecustomize"] = sys.modules.get("sitecustomize"), module
        try:
            spec.loader.exec_module(module)
        finally:
            if ours is not None:
                sys.modules["sitecustomize"] = ours


def attach_to_torch():
    """Arranges that zprobe watches torch as soon as the program has imported torch."""
    try:
        from zprobe_exec import start

        start.wait_for_torch(HERE)
    except Exception as error:
        sys.stderr.write("zprobe: cannot watch this process: %s: %s\n" % (type(error).__name__, error))


attach_to_torch()
run_hidden_module()
