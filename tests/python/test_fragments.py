"""Tests that the samples of a tensor lie at every place of a code."""

import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "crates/launch/src/exec/attach"))

from zprobe_exec import fragments  # noqa: E402


class Stride(unittest.TestCase):
    def test_elements_lie_in_all_places_of_a_code_that_is_shorter_than_their_number(self):
        for length in (64, 1 << 12, 1 << 20, 3 * 1000):
            places = range(0, length, fragments.stride(length, 64))
            self.assertGreaterEqual(len(places), 32, length)
            self.assertEqual({place % 32 for place in places}, set(range(32)), length)


if __name__ == "__main__":
    unittest.main()
