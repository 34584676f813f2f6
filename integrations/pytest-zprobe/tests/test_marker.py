"""Tests of the marker, which makes a run before the body of a test: the test fails, is skipped or goes on."""

import sys
from pathlib import Path

import pytest


def test_the_body_of_a_test_is_run_after_a_clean_run_and_not_after_findings(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.zprobe(engine="ddp", ga=2)
        def test_clean():
            print("the body was run")
            assert False

        @pytest.mark.zprobe(engine="deepspeed", stage=1, ga=4)
        def test_leak():
            print("the body was not to be run")
        """
    )
    result = project.runpytest_subprocess("--strict-markers")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*the body was run*",
            "*zprobe: findings*",
            "FINDINGS  DeepSpeed 0.18.9: ZP101 boundary-leak*",
            "*fix *pip install 'deepspeed>=0.19.0'*",
            "*rank 0 * [[]2[]]*",
            "recorded in *",
        ]
    )
    result.stdout.no_fnmatch_line("*not to be run*")


def test_a_run_that_this_release_cannot_make_is_skipped_with_its_reason(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.zprobe(engine="deepspeed", stage=2, shape="coalesced-reduction")
        def test_coalesced():
            pass
        """
    )
    result = project.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*zprobe: cannot run here: DeepSpeed 0.18.9 has no coalesce_grad_reduction*"])


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("stge=1", "*UsageError: zprobe run: unexpected argument '--stge' found*"),
        ("ga=0", "*UsageError: zprobe run: --ga 0: must be at least 1*"),
        ("'deepspeed'", "*UsageError: the marker zprobe takes flags by their names*"),
        ("out='here'", "*UsageError: out: the plugin itself sets this flag of zprobe*"),
        ("engine='ddp', python='/no/where'", "*UsageError: zprobe run: *cannot start /no/where*"),
    ],
)
def test_a_mistake_is_a_failure_in_the_words_of_zprobe_and_no_skip(project, marker, words):
    project.makepyfile(f"import pytest\n\n@pytest.mark.zprobe({marker})\ndef test_it():\n    pass\n")
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([words])


def test_a_project_without_zprobe_is_told_how_to_get_it(project, monkeypatch):
    monkeypatch.delenv("ZPROBE_PROGRAM")
    project.makepyfile("import pytest\n\n@pytest.mark.zprobe(ga=2)\ndef test_it():\n    pass\n")
    for arguments in [["--zprobe-program=/no/where"], ["-o", "zprobe_program=/no/where"]]:
        result = project.runpytest_subprocess(*arguments)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*UsageError: there is no program /no/where: install zprobe*"])


def test_the_option_wins_over_the_variable_and_that_over_the_key(project, monkeypatch):
    wrong = Path(sys.executable).parent / "no-zprobe"
    test = "import pytest\n\n@pytest.mark.zprobe(stge=1)\ndef test_it():\n    pass\n"
    project.makepyfile(test)
    result = project.runpytest_subprocess("-o", f"zprobe_program={wrong}")
    result.stdout.fnmatch_lines(["*unexpected argument '--stge'*"])
    result = project.runpytest_subprocess(f"--zprobe-program={wrong}")
    result.stdout.fnmatch_lines([f"*there is no program {wrong}*"])


def test_workers_of_xdist_make_their_runs_side_by_side(project):
    body = '@pytest.mark.zprobe(engine="ddp", ga=2)\ndef test_{}():\n    pass\n'
    project.makepyfile("import pytest\n\n" + body.format("one") + body.format("two"))
    result = project.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=2)
