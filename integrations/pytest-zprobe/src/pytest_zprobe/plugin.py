"""The options, the marker and the fixtures of the plugin."""

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import pytest

from .program import Zprobe, find
from .report import Report

MARKER = (
    "zprobe(**flags): make a run with these flags of `zprobe run` before the test, and fail with the report if the run"
    " is not clean; for example engine='deepspeed', stage=1, ga=4"
)


class RunFixture(Protocol):
    """The type of the fixture ``zprobe_run``."""

    def __call__(self, **flags: Any) -> Report:
        """Makes a run with these flags of ``zprobe run``, and returns its report."""


class ExecFixture(Protocol):
    """The type of the fixture ``zprobe_exec``."""

    def __call__(self, script: str | os.PathLike[str], *args: str, nproc_per_node: int = 2, **flags: Any) -> Report:
        """Runs a training script under torchrun with these flags of ``zprobe exec``, and returns the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the command line option and the ini key for the path of zprobe."""
    help = "Path of zprobe [default: ZPROBE_PROGRAM, the ini key zprobe_program, next to the interpreter, or on PATH]"
    parser.getgroup("zprobe").addoption("--zprobe-program", metavar="PATH", help=help)
    parser.addini("zprobe_program", "Path of zprobe")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker ``zprobe``."""
    config.addinivalue_line("markers", MARKER)


def _zprobe(config: pytest.Config) -> Zprobe:
    named = config.getoption("--zprobe-program") or os.environ.get("ZPROBE_PROGRAM") or config.getini("zprobe_program")
    return Zprobe(find(named or None))


def _directory(factory: pytest.TempPathFactory) -> Path:
    """A new directory for a run. pytest keeps it for three sessions, so that the run of a failed test can be read."""
    return factory.mktemp("zprobe")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Makes the runs of the test's markers, and then calls the test."""
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
    """Adds the screen of a report that is not clean to pytest's output for the test."""
    if not report.clean:
        request.node.add_report_section("call", "zprobe", f"{report.screen}\n\nrecorded in {report.directory}")
    return report


@pytest.fixture
def zprobe_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    """``zprobe_run(**flags)`` makes a run with these flags of ``zprobe run``, and returns its report."""

    def run(**flags: Any) -> Report:
        return _shown(request, _zprobe(request.config).run(_directory(tmp_path_factory), flags))

    return run


@pytest.fixture
def zprobe_exec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExecFixture:
    """``zprobe_exec(script, *args, nproc_per_node=2, **flags)`` runs your training script, and returns the report."""

    def run(script: str | os.PathLike[str], *args: str, nproc_per_node: int = 2, **flags: Any) -> Report:
        # With --standalone torchrun chooses a free port, so that tests can run in parallel.
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, f"--nproc-per-node={nproc_per_node}", os.fspath(script), *args]
        return _shown(request, _zprobe(request.config).exec(_directory(tmp_path_factory), flags, command))

    return run
