"""The program ``zprobe``: where it is, and how it is asked."""

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

#: Flags that the plugin itself gives, because it reads what comes of them.
OWN = {"out", "output_format", "export_json", "config", "no_config", "exit_zero", "minimise"}

#: The words with which zprobe begins the reason why this machine cannot make a run.
CANNOT_RUN = "cannot run here: "

#: The words with which zprobe says that a script ended before it could be judged.
NO_ANSWER = re.compile(r"^inconclusive: ", re.MULTILINE)


def find(named: str | None) -> Path:
    """The program that is named, or that beside the interpreter, or that on ``PATH``."""
    beside = Path(sys.executable).parent / "zprobe"
    place = named or (str(beside) if beside.is_file() else "zprobe")
    found = shutil.which(os.path.expanduser(place))
    if found is None:
        raise pytest.UsageError(
            f"there is no program {place}: install zprobe into this environment, or name it with --zprobe-program"
        )
    return Path(found)


def words(flags: Mapping[str, Any]) -> list[str]:
    """Flags of zprobe by their long names: ``reduce_bucket_size=500`` is ``--reduce-bucket-size=500``.

    A flag with True is given as it is, and one with a list once for each of its values.
    """
    result: list[str] = []
    for name, value in flags.items():
        if name.replace("-", "_") in OWN:
            raise pytest.UsageError(f"{name}: the plugin itself gives this flag to zprobe")
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                result.append(flag)
            else:
                result.append(f"{flag}={str(one).lower() if one is False else one}")
    return result


class Zprobe:
    """Questions to zprobe, each answered in a directory of its own."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, directory: Path, flags: Mapping[str, Any]) -> Report:
        """The answer of ``zprobe run``; engines are those of this interpreter if no other is named."""
        return self._ask("run", directory, words({"python": sys.executable, **flags}))

    def exec(self, directory: Path, flags: Mapping[str, Any], command: Sequence[str]) -> Report:
        """The answer of ``zprobe exec`` on a command that trains."""
        return self._ask("exec", directory, [*words(flags), "--", *command])

    def _ask(self, verb: str, directory: Path, arguments: list[str]) -> Report:
        # A test says all that it wants: zprobe.toml is for the command line.
        # The report is read from a file: what a script prints is on standard output, too.
        answer = directory.with_name(f"{directory.name}.json")
        own = ["--no-config", f"--out={directory}", "--output-format=concise", f"--export-json={answer}"]
        done = self._call([verb, *own, *arguments])
        if answer.is_file():
            return self._report(json.loads(answer.read_text(encoding="utf-8")), done.returncode, directory)
        if NO_ANSWER.search(done.stderr):
            screen = done.stderr.strip()
            return Report("inconclusive", (), done.returncode, {}, directory, screen)
        error = done.stderr.partition("error: ")[2].strip() or done.stderr.strip()
        if error.startswith(CANNOT_RUN):
            pytest.skip(f"zprobe: {error}")
        raise pytest.UsageError(f"zprobe {verb}: {error or f'ended with exit code {done.returncode} without a word'}")

    def _report(self, report: dict[str, Any], code: int, directory: Path) -> Report:
        raw = report["findings"]
        limits = [finding["limit"] for finding in raw if finding.get("limit")]
        if raw and len(limits) == len(raw):
            # Found out by the run: the same as an error before it.
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
