"""Waits for the import of torch, and then installs the watch.

The agents of launchers and data loaders also import torch, so zprobe does no expensive work at the import. A process
counts as a rank from its first backward on.
"""

import importlib.abc
import importlib.util
import json
import os
import sys

from zprobe_exec import stacks


def wait_for_torch(directory):
    """Arranges that the watch is installed as soon as torch is imported. `directory` has the settings of the run."""
    with open(os.path.join(directory, "settings.json")) as file:
        settings = json.load(file)
    stacks.begin(settings)
    sys.meta_path.insert(0, _TorchFinder(settings))


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch through the usual finders, and replaces torch's loader by a `_TorchLoader`."""

    def __init__(self, settings):
        self.settings = settings

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            stacks.see_torch(spec.origin)
            spec.loader = _TorchLoader(spec.loader, self.settings)
        return spec


class _TorchLoader(importlib.abc.Loader):
    """Loads torch with its own loader, and then installs the watch."""

    def __init__(self, loader, settings):
        self.loader, self.settings = loader, settings

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self.loader
        try:
            from zprobe_exec import watch

            watch.install(self.settings)
        except Exception as error:
            sys.stderr.write("zprobe: cannot watch torch: %s: %s\n" % (type(error).__name__, error))
