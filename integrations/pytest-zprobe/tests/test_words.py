"""Tests of the conversion from Python keywords to flags of zprobe."""

import pytest

from pytest_zprobe.program import one_line, words


def test_keywords_are_long_flags():
    flags = {
        "stage": 1,
        "reduce_bucket_size": 500,
        "overlap_comm": False,
        "poison_memory": True,
        "shape": ["tied", "frozen"],
    }
    expected = "--stage=1 --reduce-bucket-size=500 --overlap-comm=false --poison-memory --shape=tied --shape=frozen"
    assert " ".join(words(flags)) == expected


@pytest.mark.parametrize("name", ["out", "output-format", "export_json", "no_config", "exit_zero"])
def test_flags_that_the_plugin_reads_the_answer_by_are_not_for_tests(name):
    with pytest.raises(pytest.UsageError, match=name):
        words({name: "x"})


def test_an_error_is_one_line_without_the_usage_of_the_command():
    error = (
        "unexpected argument '--stge' found\n\n  tip: a similar argument exists: '--stage'\n\n"
        "Usage: zprobe run [OPTIONS]\n\nFor more information, try '--help'."
    )
    assert one_line(error) == "unexpected argument '--stge' found; tip: a similar argument exists: '--stage'"
    assert one_line("invalid value 'x'\n\nFor more information, try '--help'.") == "invalid value 'x'"
    assert one_line("two reasons:\n  one\n  two") == "two reasons: one; two"
