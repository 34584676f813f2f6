//! The script that first showed the boundary-microbatch leak, in real DeepSpeed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::contender::{Contender, RANKS};
use super::machine::output;
use super::scratch::Scratch;

/// The name of the script's row in the table.
pub const NAME: &str = "the script, with real DeepSpeed";

/// The beginning of the last line that the script prints.
const LAST_LINE: &str = "[BEFORE engine.step()]";

/// The launcher of the script's ranks.
#[derive(Clone, Copy, Debug)]
pub enum Launcher {
    /// The launcher of torch, `torch.distributed.run`.
    Torchrun,
    /// The launcher of DeepSpeed, `deepspeed.launcher.runner`.
    DeepSpeed,
}

impl Launcher {
    /// The arguments of Python, up to the number of ranks.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Torchrun => &["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
            Self::DeepSpeed => &["-m", "deepspeed.launcher.runner", "--num_gpus"],
        }
    }
}

/// The script, adapted to the CPU, and a Python to run it.
pub struct SeedScript {
    file: PathBuf,
    python: PathBuf,
    path: OsString,
    /// The versions of torch and DeepSpeed.
    pub versions: String,
}

impl SeedScript {
    /// Copies the script, and removes the use of a GPU from the copy.
    pub fn for_cpu(script: &Path, python: &Path, scratch: &Scratch) -> Result<Self> {
        let text = fs::read_to_string(script)
            .with_context(|| format!("cannot read {}", script.display()))?;
        let file = scratch.dir().join("seed_script.py");
        fs::write(&file, without_gpu(&text))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let python = interpreter(python)?;
        let versions = versions(&python)?;
        output(Command::new(&python).args(["-m", "py_compile"]).arg(&file)).with_context(|| {
            format!(
                "{} is no Python file; give --seed-script the script, without the page around it",
                script.display()
            )
        })?;
        Ok(Self { file, path: search_path(&python)?, python, versions })
    }

    /// The Python that runs the script.
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// The script under torchrun, as a contender.
    pub fn contender(&self, runs: usize) -> Contender {
        let mut script = self.under(Launcher::Torchrun, RANKS, runs);
        script.name = NAME.into();
        script
    }

    /// The script under a launcher, as a contender.
    pub fn under(&self, launcher: Launcher, ranks: usize, runs: usize) -> Contender {
        let Self { file, python, path, versions } = self;
        let name = format!("the script on {versions}, {launcher:?}, {ranks} ranks");
        let (file, python, path) = (file.clone(), python.clone(), path.clone());
        let mut script = Contender::new(name, runs, move |_| {
            let mut command = Command::new(&python);
            command.args(launcher.words()).arg(ranks.to_string()).arg(&file);
            command.env("DS_ACCELERATOR", "cpu").env("OMP_NUM_THREADS", "1").env("PATH", &path);
            Ok(command)
        });
        // The script never destroys its process group, and sometimes aborts when it exits.
        script.proof = Some(LAST_LINE);
        script
    }
}

/// The interpreter of `--python` as a program that can be started from anywhere. A name without a slash is
/// looked up in `PATH`; a path is relative to the user's working directory.
pub fn interpreter(python: &Path) -> Result<PathBuf> {
    match python.components().count() {
        1 => Ok(python.to_path_buf()),
        _ => path::absolute(python).context("--python is not a usable path"),
    }
}

/// The versions of torch and DeepSpeed, as text.
pub fn versions(python: &Path) -> Result<String> {
    let versions = output(Command::new(python).args([
        "-c",
        "from importlib.metadata import version as v; \
         print(f\"torch {v('torch')}, deepspeed {v('deepspeed')}\")",
    ]))
    .context("--python needs torch and deepspeed")?;
    ensure!(!versions.is_empty(), "{} printed no version of torch and deepspeed", python.display());
    Ok(versions)
}

/// `PATH` with the directory of the interpreter in front: DeepSpeed looks for ninja in `PATH`, which lacks an
/// environment that is not activated.
fn search_path(python: &Path) -> Result<OsString> {
    let own = python.parent().filter(|dir| !dir.as_os_str().is_empty()).map(Path::to_path_buf);
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(own.into_iter().chain(env::split_paths(&path)))
        .context("--python is in a directory whose name has a colon, which PATH cannot hold")
}

/// The text of the script with the CPU in place of CUDA.
fn without_gpu(text: &str) -> String {
    text.replace("\"cuda\"", "\"cpu\"").replace(".cuda()", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_and_modules_stay_on_the_cpu() {
        let text = "model = Linear().cuda()\nx = rand(4, device=\"cuda\")\n";
        assert_eq!(without_gpu(text), "model = Linear()\nx = rand(4, device=\"cpu\")\n");
    }

    #[test]
    fn the_python_s_own_directory_comes_first() {
        let path = search_path(Path::new("/venv/bin/python")).unwrap();
        assert_eq!(env::split_paths(&path).next(), Some(PathBuf::from("/venv/bin")));
    }
}
