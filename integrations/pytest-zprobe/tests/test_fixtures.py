"""Tests of the fixtures, which return reports on runs and training scripts."""


def test_the_report_of_a_run_is_there_for_assertions_of_ones_own(project):
    project.makepyfile(
        """
        import json

        def test_leak(zprobe_run):
            report = zprobe_run(engine="deepspeed", stage=1, ga=4)
            assert (report.verdict, report.exit_code) == ("findings", 1)
            [leak] = report.findings
            assert (leak.code, leak.name, leak.severity) == ("ZP101", "boundary-leak", "error")
            assert leak.raw["microbatch"] == 3
            assert json.loads(report.path.read_text()) == report.report
            assert report.report["run"]["versions"]["deepspeed"] == "0.18.9"

        def test_of_a_gate(zprobe_run):
            assert zprobe_run(engine="deepspeed", stage=1, ga=2).clean
        """
    )
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*assert False*", "*where False = Report(verdict='findings', *", "*Captured zprobe call*", "FINDINGS  DeepSpeed 0.18.9*"]
    )


def test_a_training_script_is_judged_as_it_is(project):
    project.makepyfile(
        """
        def test_right(zprobe_exec):
            report = zprobe_exec("train.py")
            assert report.clean and report.exit_code == 0
            assert report.report["run"]["spec"]["world_size"] == 2

        def test_wrong(zprobe_exec):
            report = zprobe_exec("train.py", "--clear", nproc_per_node=2, dry=True)
            assert report.findings[0].code.startswith("ZP1")
            assert "microbatch 0" in report.screen

        def test_ended_early(zprobe_exec):
            report = zprobe_exec("train.py", "--early")
            assert (report.verdict, report.report) == ("inconclusive", {})
            assert "before any process had called backward" in report.screen
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=3)


def test_a_mistake_in_a_flag_of_exec_is_said_in_the_words_of_zprobe(project):
    project.makepyfile("def test_it(zprobe_exec):\n    zprobe_exec('train.py', weigthing='any')\n")
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: zprobe exec: unexpected argument '--weigthing' found*"])
