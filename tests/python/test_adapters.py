"""Adapters have one shape: the methods of `BaseEngine`, in its order, then their own."""

import ast
import os
import unittest

import zprobe_rank.engines
from zprobe_rank.engines.base import BaseEngine

HERE = os.path.dirname(zprobe_rank.engines.__file__)
ENGINES = sorted(name for name in os.listdir(HERE) if os.path.isfile(os.path.join(HERE, name, "adapter.py")))
OFFERED = [name for name, value in vars(BaseEngine).items() if callable(value)]


def methods(engine):
    """Names of the methods of an adapter's `Engine`, in the order of its file."""
    with open(os.path.join(HERE, engine, "adapter.py")) as file:
        module = ast.parse(file.read())
    (definition,) = [it for it in module.body if isinstance(it, ast.ClassDef) and it.name == "Engine"]
    return [it.name for it in definition.body if isinstance(it, ast.FunctionDef)]


class Shape(unittest.TestCase):
    def test_every_real_engine_has_an_adapter(self):
        self.assertIn("deepspeed", ENGINES)

    def test_methods_stand_in_the_order_of_the_base_and_what_is_private_behind_them(self):
        for engine in ENGINES:
            found = methods(engine)
            shared = [name for name in OFFERED if name in found]
            own = [name for name in found if name not in OFFERED]
            self.assertEqual(found, shared + own, engine)
            self.assertTrue(all(name.startswith("_") for name in own), engine)


if __name__ == "__main__":
    unittest.main()
