"""Tests of the gate that `zprobe init` writes, and of the pre-commit hook: both are valid, and fail on a real
finding."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner import Action

LEAK = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"},\
 "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}'


@pytest.fixture
def project(workspace: Path, program: Path) -> Path:
    """A project that trains with a buggy DeepSpeed, after `zprobe init --pre-commit`."""
    (workspace / "ds_config.json").write_text(LEAK)
    (workspace / ".venv").symlink_to(sys.prefix)
    subprocess.run([program, "init", "--pre-commit"], cwd=workspace, check=True, env=environment(program))
    return workspace


def environment(program: Path) -> dict:
    """The environment variables of a user with zprobe on PATH and no active virtual environment."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    kept.pop("ZPROBE_PROGRAM")
    return kept | {"PATH": f"{program.parent}{os.pathsep}{kept['PATH']}"}


def asked(workflow: dict) -> tuple[str, dict]:
    """The path and the inputs of the action in the workflow's step that uses it."""
    steps = workflow["jobs"]["check"]["steps"]
    [step] = [step for step in steps if step.get("uses", "").startswith("./")]
    checked_out = [
        step["with"]["path"] for step in steps if "path" in step.get("with", {}) and "repository" in step["with"]
    ]
    assert step["uses"].removeprefix("./") in checked_out, "the action lies elsewhere"
    return step["uses"], step["with"]


def test_the_workflow_that_init_writes_is_valid_and_fails_on_a_finding(root, program, project, tmp_path):
    files = [root / "docs/ci/github-actions.yml", project / ".github/workflows/zprobe.yml"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    subprocess.run([*command, *files], check=True)

    workflow = yaml.safe_load(files[1].read_text())
    for step in workflow["jobs"]["check"]["steps"]:
        if "run" in step:
            assert "${{" not in step["run"]
            subprocess.run(["shellcheck", "--shell=bash", "-"], input=step["run"], text=True, check=True)
    _, inputs = asked(workflow)
    result = Action(root).run(project, tmp_path / "temp", inputs | {"zprobe": str(program)})
    assert (result.code, result.outputs["verdict"]) == (1, "findings"), result.log
    assert "ZP101 boundary-leak" in result.log and "file=probes/ds_config.toml" in result.log


def test_the_hook_that_init_writes_fails_on_a_finding(program, project):
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    done = pre_commit(["run", "--files", "zprobe.toml"], project, environment(program))
    assert done.returncode == 1 and "ZP101 boundary-leak" in done.stdout, done.stdout


@pytest.mark.skipif(shutil.which("cargo") is None, reason="the hook is built by cargo")
def test_the_hook_of_this_repository_builds_zprobe_and_runs_it(root, building, workspace, tmp_path):
    (workspace / "ours.toml").write_text('description = "Ours"\nengines = ["ddp"]\n[run]\nga = 2\n')
    (workspace / "zprobe.toml").write_text(
        f'[check]\nprobes = ["ours.toml"]\nengine = ["ddp"]\npython = "{sys.prefix}"\n'
    )
    subprocess.run(["git", "add", "--all"], cwd=workspace, check=True)
    own = building | {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    without = os.environ | own | {"ZPROBE_PROGRAM": "/no/where"}
    done = pre_commit(
        ["try-repo", str(root), "zprobe-check", "--verbose", "--files", "zprobe.toml"], workspace, without
    )
    assert done.returncode == 0 and "1 of 1 probe passed" in done.stdout, done.stdout


def test_the_hook_runs_when_what_is_checked_may_have_changed_and_not_else(root):
    [hook] = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    runs = ["zprobe.toml", "a/zprobe-baseline.toml", "pyproject.toml", "requirements-dev.txt", "probes/own.toml"]
    assert all(re.search(hook["files"], name) for name in runs)
    assert not any(re.search(hook["files"], name) for name in ["train.py", "probes/readme.md", "my-zprobe.toml"])


def pre_commit(arguments: list[str], workspace: Path, variables: dict) -> "subprocess.CompletedProcess[str]":
    """Runs pre-commit to its end, and returns the result with the output."""
    command = [sys.executable, "-m", "pre_commit", *arguments]
    return subprocess.run(
        command, cwd=workspace, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
