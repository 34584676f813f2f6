"""Fixtures of the tests of zprobe in CIs: the repository, the program, the workspace."""

import os
import shlex
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def program() -> Path:
    """The program under test."""
    return Path(os.environ["ZPROBE_PROGRAM"])


#: A shell script in place of cargo that accepts only an installation from zprobe's source, and installs the
#: program under test.
CARGO = """#!/bin/sh
[ "$1" = --version ] && exit 0
[ "$1" = install ] || exit 64
while [ $# -gt 0 ]; do
    case "$1" in
        --path) source="$2"; shift ;;
        --root) root="$2"; shift ;;
    esac
    shift
done
grep -q '^default-run = "zprobe"' "$source/Cargo.toml" && [ -f "$source/Cargo.lock" ] || exit 64
mkdir -p "$root/bin" && cp {program} "$root/bin/zprobe"
"""


@pytest.fixture(scope="session")
def building(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables for builds of zprobe. By default nothing is compiled: the wheel is built from the
    same source. With ZPROBE_TEST_FULL, builds share their dependencies, leave the programs of this repository
    as they are, and are not optimized, since the built programs hardly run."""
    if "ZPROBE_TEST_FULL" in os.environ:
        return {"CARGO_TARGET_DIR": str(ROOT / "target/pre-commit"), "RUSTFLAGS": "-Copt-level=0 -Cdebuginfo=0"}
    place = tmp_path_factory.mktemp("cargo")
    (place / "cargo").write_text(CARGO.replace("{program}", shlex.quote(str(program))))
    (place / "cargo").chmod(0o755)
    return {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A user's repository, which is checked out into a path with a space."""
    path = tmp_path / "work space"
    path.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=path, check=True)
    return path


@pytest.fixture
def wheel(tmp_path: Path, program: Path) -> Path:
    """A wheel with the program, as a package index would serve the wheel."""
    path = tmp_path / "index" / "zprobe-0.1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "zprobe-0.1.0.dist-info"
    files = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: zprobe\nVersion: 0.1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "zprobe-0.1.0.data/scripts/zprobe": program.read_bytes(),
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (files | {f"{info}/RECORD": record.encode()}).items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, content)
    return path
