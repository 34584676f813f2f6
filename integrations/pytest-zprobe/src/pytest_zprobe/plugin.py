"""Options, the marker and the fixtures."""

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import pytest

from .program import Zprobe, find
from .report import Report

MARKER = (
    "zprobe(**flags): before the test, make the run of `zprobe run` with these flags, and fail with its report if it"
    " is not clean; for example engine='deepspeed', stage=1, ga=4"
)


class RunFixture(Protocol):
    """The fixture ``zprobe_run``."""

    def __call__(self, **flags: Any) -> Report:
        """The report of a run with these flags of ``zprobe run``."""


class ExecFixture(Protocol):
    """The fixture ``zprobe_exec``."""

    def __call__(self, script: str | os.PathLike[str], *args: str, nproc_per_node: int = 2, **flags: Any) -> Report:
        """The report on a training script under torchrun, with these flags of ``zprobe exec``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option and the key that name the program."""
    help = "The program zprobe [default: ZPROBE_PROGRAM, the key zprobe_program, beside the interpreter, or on PATH]"
    parser.getgroup("zprobe").addoption("--zprobe-program", metavar="PATH", help=help)
    parser.addini("zprobe_program", "The program zprobe")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER)


def _zprobe(config: pytest.Config) -> Zprobe:
    named = config.getoption("--zprobe-program") or os.environ.get("ZPROBE_PROGRAM") or config.getini("zprobe_program")
    return Zprobe(find(named or None))


def _directory(factory: pytest.TempPathFactory) -> Path:
    """A new directory, which pytest keeps for a while: what a failed test tells of is there to be read."""
    return factory.mktemp("zprobe")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Makes the runs that markers ask for, and then the test."""
    __tracebackhide__ = True
    for marker in item.iter_markers("zprobe"):
        if marker.args:
            raise pytest.UsageError("the marker zprobe takes flags by their names, as in zprobe(stage=1)")
        factory = item.config._tmp_path_factory  # type: ignore[attr-defined]
        report = _zprobe(item.config).run(_directory(factory), marker.kwargs)
        if not report.clean:
            pytest.fail(f"zprobe: {report.verdict}\n{report.screen}\n\nrecorded in {report.directory}", pytrace=False)
    return (yield)


def _shown(request: pytest.FixtureRequest, report: Report) -> Report:
    """Puts the screen of a report that is not clean beside what the test itself says."""
    if not report.clean:
        request.node.add_report_section("call", "zprobe", f"{report.screen}\n\nrecorded in {report.directory}")
    return report


@pytest.fixture
def zprobe_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    """``zprobe_run(**flags)``: the report of a run with these flags of ``zprobe run``."""

    def run(**flags: Any) -> Report:
        return _shown(request, _zprobe(request.config).run(_directory(tmp_path_factory), flags))

    return run


@pytest.fixture
def zprobe_exec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExecFixture:
    """``zprobe_exec(script, *args, nproc_per_node=2, **flags)``: the report on your own training script."""

    def run(script: str | os.PathLike[str], *args: str, nproc_per_node: int = 2, **flags: Any) -> Report:
        # Standalone: a port of its own, so that tests can run side by side.
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, f"--nproc-per-node={nproc_per_node}", os.fspath(script), *args]
        return _shown(request, _zprobe(request.config).exec(_directory(tmp_path_factory), flags, command))

    return run
