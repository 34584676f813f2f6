//! A git repository of a real engine in which one commit plants a bug, for the test of `zprobe bisect --git`.
//!
//! The engine is the installed one. So the commits are small to make, quick to build, and known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The bug, as code after the engine's own: the boundary is the first microbatch in place of the last.
const BUG: &str = "

DeepSpeedEngine.is_gradient_accumulation_boundary = (
    lambda self: self.micro_steps % self.gradient_accumulation_steps() == 0
)
";

/// The title of the commit that plants the bug, by which the commit is recognised.
const TITLE: &str = "Move the boundary to the first microbatch (#3)";

/// The `pyproject.toml` of a build that takes the engine's files unchanged.
const BUILD: &str = "[build-system]
requires = [\"setuptools\"]
build-backend = \"setuptools.build_meta\"

[project]
name = \"deepspeed\"
version = \"VERSION+planted\"

[tool.setuptools.packages.find]
include = [\"deepspeed*\"]

[tool.setuptools.package-data]
\"*\" = [\"*\", \"**/*\"]
";

/// The titles of the commits after the release; the second commit cannot be built.
const BETWEEN: [&str; 3] = ["Say more (#1)", "Do not build (#2)", TITLE];

/// A repository with a tag for the release, and with the branch `main` after the tag.
pub struct Repository(PathBuf);

impl Repository {
    /// Makes the repository in `dir`, which must not exist, from the engine installed for `python`.
    pub fn of_engine(python: &Path, version: &str, dir: &Path) -> Result<Self> {
        let packages = asked(
            Command::new(python)
                .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
        )?;
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        asked(Command::new("cp").arg("-r").arg(Path::new(&packages).join("deepspeed")).arg(dir))?;
        let repository = Self(dir.to_owned());
        let build = BUILD.replace("VERSION", version);
        repository.write("pyproject.toml", &build)?;
        repository.write(".gitignore", "__pycache__/\n")?;
        repository.git(&["init", "--quiet", "--initial-branch", "main"])?;
        repository.commit("Release")?;
        repository.git(&["tag", &format!("v{version}")])?;
        for title in BETWEEN {
            repository.write("README.md", title)?;
            let broken = title.starts_with("Do not build");
            let build = if broken { "[project]\nname = \"\"\n" } else { build.as_str() };
            repository.write("pyproject.toml", build)?;
            if title == TITLE {
                let engine = dir.join("deepspeed/runtime/engine.py");
                fs::write(&engine, fs::read_to_string(&engine)? + BUG)?;
            }
            repository.commit(title)?;
        }
        Ok(repository)
    }

    /// The directory of the repository.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Checks the JSON output of `zprobe bisect`: the commit with the bug is the first bad one, among the
    /// commits that could be tested.
    pub fn check(&self, answer: &str) -> Result<()> {
        let answer: serde_json::Value = serde_json::from_str(answer)?;
        let first = answer["commits"]["first"].as_array().context("no first commit")?;
        let titles: Vec<&str> = first.iter().filter_map(|it| it["title"].as_str()).collect();
        // The commit before the bug cannot be built, so that it may be the first bad one as well.
        ensure!(titles == [BETWEEN[1], TITLE], "zprobe bisect found another commit: {answer:#}");
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn commit(&self, title: &str) -> Result<()> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "-m", title])
    }

    fn git(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.0);
        for own in ["user.name=zprobe", "user.email=zprobe@localhost", "commit.gpgsign=false"] {
            command.args(["-c", own]);
        }
        // The dates make the commits the same each time, so that their environments are made only once.
        for date in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
            command.env(date, "2026-01-01T00:00:00Z");
        }
        asked(command.args(words)).map(drop)
    }
}

/// The output of a command; an error if the command fails.
fn asked(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
