"""Tests of the action: it is valid, no input reaches a shell as code, and its steps run with a real engine."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import json
from pathlib import Path

import pytest

from runner import Action

DDP = """
description = "Ours"
engines = ["ddp"]

[run]
ga = 2
"""


def run(root: Path, workspace: Path, tmp_path: Path, environment=None, **inputs: str):
    """Runs the action; underscores in the names of inputs become dashes."""
    inputs = {name.replace("_", "-"): value for name, value in inputs.items()}
    return Action(root).run(workspace, tmp_path / "temp", inputs, environment)


def redacted(directory: str) -> list[str]:
    """The files in the directory of the results that may leave the machine: logs may have secrets."""
    return [f"{directory}/{name}" for name in ("results.xml", "results.sarif", "runs/**/report.json")]


def test_the_action_is_valid_by_the_schema(root):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    subprocess.run([*command, str(root / "action.yml")], check=True)


def test_no_input_is_pasted_into_the_text_of_a_script(root):
    scripts = [step["run"] for step in Action(root).steps if "run" in step]
    assert len(scripts) > 2
    assert not any("${{" in script for script in scripts)


def test_shellcheck_has_nothing_to_say_about_the_scripts(root):
    for step in Action(root).steps:
        if "run" in step:
            command = ["shellcheck", "--shell=bash", "-"]
            done = subprocess.run(command, input=step["run"], text=True, capture_output=True)
            assert done.returncode == 0, done.stdout + done.stderr


def test_every_input_is_used_and_every_output_has_a_step(root):
    action = Action(root)
    for name in action.content["inputs"]:
        assert f"inputs.{name}" in action.text.split("\nruns:")[1], name
    steps = {step.get("id") for step in action.steps}
    for output in action.content["outputs"].values():
        assert output["value"].split(".")[1] in steps, output


def test_a_clean_engine_passes_and_leaves_its_results(root, program, workspace, tmp_path):
    (workspace / "ours.toml").write_text(DDP)
    result = run(
        root, workspace, tmp_path, zprobe=str(program), engine="ddp", python=sys.executable, args="'ours.toml'"
    )
    assert (result.code, result.outputs["verdict"], result.outputs["exit-code"]) == (0, "clean", "0"), result.log
    assert "1 of 1 probe passed" in result.summary
    cases = ElementTree.parse(result.outputs["junit"]).getroot().iter("testcase")
    assert [case.get("name") for case in cases] == ["ours"]
    assert json.loads(Path(result.outputs["sarif"]).read_text())["version"] == "2.1.0"
    [(uses, given)] = result.used
    assert uses.startswith("actions/upload-artifact@")
    assert given["path"].split() == redacted(result.outputs["directory"]) and given["name"] == "zprobe"
    assert not list(workspace.glob("*.xml")), "the user's own files stay alone"


def test_a_finding_fails_the_job_with_annotations_and_its_run_as_an_artifact(root, program, workspace, tmp_path):
    result = run(
        root,
        workspace,
        tmp_path,
        zprobe=str(program),
        command="run",
        engine="deepspeed",
        python=sys.executable,
        args="--stage 1 --ga 4",
    )
    assert (result.code, result.outputs["verdict"], result.outputs["exit-code"]) == (1, "findings", "1"), result.log
    assert "\n::error " in result.log and "ZP101 boundary-leak" in result.log
    assert "ZP101" in result.summary
    recorded = Path(result.outputs["directory"]) / "runs"
    assert (recorded / "trace.jsonl").exists()
    assert [given["path"].split() for _, given in result.used] == [redacted(result.outputs["directory"])]


def test_the_users_own_script_is_asked_with_its_words_as_they_stand(root, program, workspace, tmp_path):
    (workspace / "a script.py").write_text("import sys\nsys.exit(0 if sys.argv[1:] == ['a b', '$HOME'] else 9)\n")
    words = f"-- '{sys.executable}' 'a script.py' \"a b\" '$HOME'"
    result = run(root, workspace, tmp_path, zprobe=str(program), command="exec", args=words, upload_artifact="false")
    # The script trains nothing, so there is no answer, but it was started with the right words.
    assert (result.code, result.outputs["verdict"]) == (4, "inconclusive"), result.log
    assert "failed with exit code" not in result.log
    assert result.used == []


@pytest.mark.parametrize("code", [1, 2, 3])
@pytest.mark.parametrize("flag", ["", "--observe "])
def test_the_exit_code_of_a_script_without_an_answer_is_no_verdict(flag, code, root, program, workspace, tmp_path):
    words = f"{flag}-- '{sys.executable}' -c 'raise SystemExit({code})'"
    result = run(root, workspace, tmp_path, zprobe=str(program), command="exec", args=words, upload_artifact="false")
    assert (result.code, result.outputs["verdict"]) == (code if flag else 4, "inconclusive"), result.log


@pytest.mark.parametrize("name", ["command", "engine", "python", "args", "zprobe", "version", "artifact-name"])
def test_no_input_is_run_as_a_command(name, root, program, workspace, tmp_path):
    evil = f"$(touch '{workspace}/evil'); touch evil; `touch evil`\n\"; touch evil #"
    inputs = {"zprobe": str(program), "engine": "ddp", "args": "--list"}
    if name == "version":
        del inputs["zprobe"]
    # No package index is asked for a name that cannot be a version.
    offline = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    run(root, workspace, tmp_path, offline, **(inputs | {name: evil}))
    assert not (workspace / "evil").exists()


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"engine": "deepsped"}, "invalid value 'deepsped' for '--engine"),
        ({"command": "sweep"}, "the input `command` is check, run or exec"),
        ({"command": "exec", "engine": "ddp"}, "the inputs `engine` and `python` are for check and run"),
        ({"args": "'"}, "the input `args` has a quote that does not end"),
        ({"engine": "ddp", "python": "/no/where"}, "--engine ddp: cannot start /no/where"),
    ],
)
def test_a_mistake_is_an_annotation_that_says_which(inputs, error, root, program, workspace, tmp_path):
    result = run(root, workspace, tmp_path, zprobe=str(program), **inputs)
    assert (result.code, result.outputs["verdict"]) == (2, "error"), result.log
    assert any(error in line for line in result.log.splitlines() if line.startswith("::error title=zprobe::")), (
        result.log
    )


def test_a_program_that_cannot_be_had_is_said_before_anything_runs(root, program, workspace, tmp_path):
    result = run(root, workspace, tmp_path, zprobe="dist/zprobe.whl")
    assert result.code == 2 and "::error title=zprobe::there is no file dist/zprobe.whl" in result.log
    assert "Ask" not in result.log and result.outputs["verdict"] == ""


@pytest.mark.parametrize("installer", ["uv", "pip"])
@pytest.mark.parametrize("way", ["zprobe", "version"])
def test_a_release_is_installed_from_a_wheel_or_an_index(installer, way, root, wheel, workspace, tmp_path):
    index = str(wheel.parent)
    environment = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": index, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index}
    if installer == "pip":
        environment["PATH"] = without_uv(tmp_path)
    result = run(
        root,
        workspace,
        tmp_path,
        environment,
        args="--list --engine native",
        **{way: str(wheel) if way == "zprobe" else "0.1.0"},
    )
    assert result.code == 0, result.log
    assert "native/stage1-bf16" in result.log


def without_uv(tmp_path: Path) -> str:
    """A PATH with the programs that the scripts need, and without uv."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in "bash dirname mktemp printf realpath rm sed tail tee xargs".split():
        found = subprocess.run(["bash", "-c", f"type -P {name}"], check=True, capture_output=True, text=True)
        (place / name).symlink_to(found.stdout.strip())
    (place / "python3").symlink_to(sys.executable)
    return str(place)


def test_without_a_release_the_program_is_built_and_kept_in_the_cache(root, building, workspace, tmp_path):
    result = run(root, workspace, tmp_path, building, args="--list --engine native")
    assert result.code == 0 and "native/stage1-bf16" in result.log, result.log
    [(restore, wanted), (save, kept), (_, _)] = result.used
    assert restore.startswith("actions/cache/restore@") and save.startswith("actions/cache/save@")
    assert wanted == kept and wanted["key"].startswith("zprobe-Linux-X64-") and len(wanted["key"]) > 64
    assert (Path(kept["path"]) / "bin/zprobe").exists()
