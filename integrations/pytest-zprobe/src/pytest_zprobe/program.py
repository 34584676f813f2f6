"""Finds the program ``zprobe``, calls it and reads its reports."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .report import Finding, Report

#: The flags that tests must not set: the plugin sets them, or needs their defaults to read the answer.
OWN = {"out", "output_format", "export_json", "config", "no_config", "exit_zero", "minimise"}

#: The beginning of zprobe's error when this machine cannot make a run.
CANNOT_RUN = "cannot run here: "

#: The beginning of zprobe's message when a script ended before it could be judged.
NO_ANSWER = re.compile(r"^inconclusive: ", re.MULTILINE)


def find(named: str | None) -> Path:
    """The path of zprobe: the named program, or else the one next to the interpreter or on ``PATH``."""
    beside = Path(sys.executable).parent / "zprobe"
    place = named or (str(beside) if beside.is_file() else "zprobe")
    found = shutil.which(os.path.expanduser(place))
    if found is None:
        raise pytest.UsageError(
            f"there is no program {place}: install zprobe into this environment, or give its path with --zprobe-program"
        )
    return Path(found)


def words(flags: Mapping[str, Any]) -> list[str]:
    """Converts keywords to flags of zprobe: ``reduce_bucket_size=500`` becomes ``--reduce-bucket-size=500``.

    True gives the flag without a value, and a list gives the flag once for each value.
    """
    result: list[str] = []
    for name, value in flags.items():
        if name.replace("-", "_") in OWN:
            raise pytest.UsageError(f"{name}: the plugin itself sets this flag of zprobe")
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                result.append(flag)
            else:
                result.append(f"{flag}={str(one).lower() if one is False else one}")
    return result


def one_line(error: str) -> str:
    """Puts an error of zprobe into one line, without the usage of the command: pytest's summary shows only one line."""
    kept = re.split(r"^(?:Usage: |For more information, )", error, maxsplit=1, flags=re.MULTILINE)[0]
    return "; ".join(line.strip() for line in kept.splitlines() if line.strip()).replace(":; ", ": ")


class Zprobe:
    """Calls zprobe; each run is recorded in a directory of its own."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, directory: Path, flags: Mapping[str, Any]) -> Report:
        """The report of ``zprobe run``, with the engines of this interpreter unless ``python`` names another one."""
        return self._ask("run", directory, words({"python": sys.executable, **flags}))

    def exec(self, directory: Path, flags: Mapping[str, Any], command: Sequence[str]) -> Report:
        """The report of ``zprobe exec`` on a training command."""
        return self._ask("exec", directory, [*words(flags), "--", *command])

    def _ask(self, verb: str, directory: Path, arguments: list[str]) -> Report:
        # zprobe.toml is ignored, because a test gives all its flags itself.
        # The report is read from a file, because standard output also has the script's output.
        answer = directory.with_name(f"{directory.name}.json")
        own = ["--no-config", f"--out={directory}", "--output-format=concise", f"--export-json={answer}"]
        done = self._call([verb, *own, *arguments])
        if answer.is_file():
            return self._report(json.loads(answer.read_text(encoding="utf-8")), done.returncode, directory)
        if NO_ANSWER.search(done.stderr):
            screen = done.stderr.strip()
            return Report("inconclusive", (), done.returncode, {}, directory, screen)
        error = one_line(done.stderr.partition("error: ")[2].strip() or done.stderr.strip())
        if error.startswith(CANNOT_RUN):
            pytest.skip(f"zprobe: {error}")
        raise pytest.UsageError(f"zprobe {verb}: {error or f'exit code {done.returncode} without an error message'}")

    def _report(self, report: dict[str, Any], code: int, directory: Path) -> Report:
        raw = report["findings"]
        limits = [finding["limit"] for finding in raw if finding.get("limit")]
        if raw and len(limits) == len(raw):
            # The run itself found the limit, which counts like an error before the run.
            pytest.skip(f"zprobe: {CANNOT_RUN}{limits[0]}")
        findings = tuple(Finding(it["code"], it["name"], it["message"], it["severity"], it) for it in raw)
        screen = self._call(["show", str(directory)]).stdout.strip()
        return Report(report["verdict"], findings, code, report, directory, screen)

    def _call(self, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "80"}
        return subprocess.run(
            [str(self.program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
        )
