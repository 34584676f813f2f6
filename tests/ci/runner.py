"""A runner of GitHub Actions for the steps of a composite action: expressions, variables, files and shells.

Steps with `uses` are recorded and not executed, as if each step had succeeded without outputs.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|&&|\|\||==|!=|[()!]|[A-Za-z_][\w.-]*)")
OPERATORS = {"&&": " and ", "||": " or ", "==": "==", "!=": "!=", "!": " not ", "(": "(", ")": ")"}


@dataclass
class Result:
    """The end of an action: the exit code of the last failed step, the outputs, the log, the summary and the
    used actions."""

    code: int
    outputs: dict
    log: str
    summary: str
    used: list = field(default_factory=list)


class Action:
    """A composite action, and the directory to which a runner would have cloned the action."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.text = (directory / "action.yml").read_text()
        self.content = yaml.safe_load(self.text)
        self.steps = self.content["runs"]["steps"]

    def run(self, workspace: Path, temp: Path, inputs: dict, environment: dict | None = None) -> Result:
        """Executes the steps in a workspace, as a job that uses this action does."""
        unknown = inputs.keys() - self.content["inputs"].keys()
        assert not unknown, f"the action has no input {unknown}"
        defaults = {name: spec.get("default", "") for name, spec in self.content["inputs"].items()}
        job = Job(self, workspace, temp, defaults | inputs, environment or {})
        for step in self.steps:
            job.step(step)
        outputs = {name: job.filled(spec["value"]) for name, spec in self.content["outputs"].items()}
        return Result(job.code, outputs, job.log, job.read("summary"), job.used)


class Job:
    """The state of a job while an action runs in the job."""

    def __init__(self, action: Action, workspace: Path, temp: Path, inputs: dict, environment: dict):
        self.action, self.workspace, self.temp, self.inputs = action, workspace, temp, inputs
        self.files = temp / "_runner_file_commands"
        self.files.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ZPROBE_", "GITHUB_"))}
        self.environment = kept | environment
        self.outputs: dict = {}
        self.code, self.log, self.used = 0, "", []

    def read(self, name: str) -> str:
        """The text of a file through which steps talk to the runner; empty if the file does not exist."""
        path = self.files / name
        return path.read_text() if path.exists() else ""

    def step(self, step: dict) -> None:
        """Executes a step if the condition of the step holds."""
        condition = str(step.get("if", "success()")).removeprefix("${{").removesuffix("}}")
        # As on a real runner, `success()` is added to a condition that tests no status.
        if not re.search(r"\b(always|success|failure|cancelled)\(", condition):
            condition = f"success() && ({condition})"
        if not self.value(condition):
            return
        if "uses" in step:
            filled = {name: self.filled(str(value)) for name, value in step.get("with", {}).items()}
            self.used.append((step["uses"], filled))
            return
        for name in ("output", "path"):
            (self.files / name).write_text("")
        script = self.files / "script.sh"
        script.write_text(self.filled(step["run"]))
        own = {name: self.filled(str(value)) for name, value in step.get("env", {}).items()}
        runner = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action.directory),
            "GITHUB_OUTPUT": str(self.files / "output"),
            "GITHUB_PATH": str(self.files / "path"),
            "GITHUB_STEP_SUMMARY": str(self.files / "summary"),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp),
        }
        assert step["shell"] == "bash"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace / self.filled(step.get("working-directory", ".")),
            env=self.environment | runner | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log += done.stdout
        lines = [line.partition("=") for line in self.read("output").splitlines()]
        self.outputs[step.get("id", "")] = {name: value for name, _, value in lines}
        before = os.pathsep.join(reversed(self.read("path").splitlines()))
        if before:
            self.environment["PATH"] = before + os.pathsep + self.environment["PATH"]
        if done.returncode != 0:
            self.code = done.returncode

    def filled(self, text: str) -> str:
        """The text with the values of its expressions in place of the expressions."""
        return EXPRESSION.sub(lambda found: str(self.value(found[1])), text)

    def value(self, expression: str):
        """The value of an expression of GitHub Actions."""
        code, at = "", 0
        expression = expression.strip()
        while at < len(expression):
            token = TOKEN.match(expression, at)
            assert token, f"the runner of this test does not know {expression[at:]!r}"
            at, word = token.end(), token[1]
            if word.startswith("'"):
                code += repr(word[1:-1].replace("''", "'"))
            else:
                code += OPERATORS.get(word) or f"look({word!r})"
        # Calls have no arguments, so `always()` becomes `look('always')()`.
        return eval(code, {"look": self.look})

    def look(self, name: str):
        """The value or the function that a name stands for."""
        functions = {"always": True, "success": self.code == 0, "failure": self.code != 0}
        if name in functions:
            return lambda: functions[name]
        match name.split("."):
            case ["inputs", key]:
                return self.inputs[key]
            case ["runner", "os"]:
                return "Linux"
            case ["runner", "arch"]:
                return "X64"
            case ["steps", step, "outputs", key]:
                known = [it.get("id") for it in self.action.steps]
                assert step in known, f"no step has the id {step}"
                return self.outputs.get(step, {}).get(key, "")
        raise AssertionError(f"the runner of this test does not know {name}")
