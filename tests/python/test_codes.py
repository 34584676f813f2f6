"""Tests that the Python ranks have the same codes as `spec/code.rs`, whose values a Rust test passes in a file."""

import json
import os
import unittest

from zprobe_rank.codes import Code


class Codes(unittest.TestCase):
    def test_they_are_those_that_the_diagnosis_decodes(self):
        with open(os.environ["ZPROBE_TEST_CODES"]) as file:
            cases = json.load(file)
        for case in cases:
            code = Code(case["contributions"], case["seed"])
            elements = range(len(case["initial"]))
            self.assertEqual(code.length, case["length"])
            self.assertEqual(code.initial(elements).tolist(), case["initial"])
            for column, values in enumerate(case["values"]):
                self.assertEqual(code.values(column, elements).tolist(), values)

    def test_a_piece_has_the_values_of_its_place(self):
        code = Code(8, 3)
        whole = code.values(5, range(100))
        self.assertEqual(code.values(5, range(37, 61)).tolist(), whole[37:61].tolist())
