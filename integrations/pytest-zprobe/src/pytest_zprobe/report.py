"""The answer of zprobe, as tests see it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, as it stands in the report."""

    code: str
    """Code of the rule, for example ``ZP101``. ``zprobe explain ZP101`` has its page."""
    name: str
    """Name of the rule, for example ``boundary-leak``."""
    message: str
    """A sentence on what happened."""
    severity: str
    """``error`` or ``warning``."""
    raw: dict[str, Any] = field(repr=False, compare=False)
    """The finding with its evidence, place and known bugs, as ``report.json`` has it."""


@dataclass(frozen=True)
class Report:
    """The answer of zprobe on one run."""

    verdict: str
    """``clean``, ``findings``, ``crashed`` or ``inconclusive``."""
    findings: tuple[Finding, ...]
    """Findings, the first cause first."""
    exit_code: int
    """Exit code of zprobe."""
    report: dict[str, Any] = field(repr=False)
    """The content of ``report.json``; empty where nothing was recorded that could be diagnosed."""
    directory: Path
    """Directory of the run, for ``zprobe show`` and ``zprobe issue``."""
    screen: str = field(repr=False)
    """The first screen of the report, or the words of zprobe where there is no report."""

    @property
    def clean(self) -> bool:
        """True if every gradient arrived exactly once, with the right weight, where it belongs."""
        return self.verdict == "clean"

    @property
    def path(self) -> Path:
        """Path of ``report.json``."""
        return self.directory / "report.json"
