"""The report of zprobe, as tests use it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A finding of the report."""

    code: str
    """The code of the rule, for example ``ZP101``; ``zprobe explain ZP101`` prints its page."""
    name: str
    """The name of the rule, for example ``boundary-leak``."""
    message: str
    """A sentence that describes the finding."""
    severity: str
    """The severity, ``error`` or ``warning``."""
    raw: dict[str, Any] = field(repr=False, compare=False)
    """The finding as in ``report.json``, with its evidence, place and known bugs."""


@dataclass(frozen=True)
class Report:
    """The report of zprobe on one run."""

    verdict: str
    """The verdict: ``clean``, ``findings``, ``crashed`` or ``inconclusive``."""
    findings: tuple[Finding, ...]
    """The findings, the first cause first."""
    exit_code: int
    """The exit code of zprobe."""
    report: dict[str, Any] = field(repr=False)
    """The content of ``report.json``; empty if there were no records to diagnose."""
    directory: Path
    """The directory of the run, for ``zprobe show`` and ``zprobe issue``."""
    screen: str = field(repr=False)
    """The first screen of the report, or zprobe's error message if there is no report."""

    @property
    def clean(self) -> bool:
        """True if every gradient arrived exactly once, with the right weight, in the right place."""
        return self.verdict == "clean"

    @property
    def path(self) -> Path:
        """The path of ``report.json``."""
        return self.directory / "report.json"
