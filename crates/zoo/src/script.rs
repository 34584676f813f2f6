//! Scripts for rows about trainers: the scripts of `examples/train`, changed by the edits of the row.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// Declares the scripts by the names of their files.
macro_rules! scripts {
    ($($name:literal,)*) => {
        /// The name and text of each script.
        const FILES: &[(&str, &str)] = &[$((
            $name,
            include_str!(concat!("../train/", $name)),
        ),)*];
    };
}

scripts! {
    "accelerate_loop.py",
    "common.py",
    "ddp.py",
    "deepspeed_zero.py",
    "fsdp2.py",
    "hf_trainer.py",
    "lightning_manual.py",
    "lightning_module.py",
}

/// A script that shows a bug under `zprobe exec`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BugScript {
    /// The name of the script in `examples/train`.
    pub file: String,
    /// The number of ranks that torchrun starts; `None` where the script starts its ranks itself, or is one process.
    pub ranks: Option<usize>,
    /// The arguments of the script, in one text that is split as by a shell.
    pub flags: String,
    /// The options of `zprobe exec`, in one text that is split as by a shell.
    #[serde(default)]
    pub options: String,
    /// The edits of the script, made in this order.
    #[serde(default)]
    pub edit: Vec<ScriptEdit>,
}

/// A replacement of text in a script.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptEdit {
    /// The text to replace, which occurs in the script exactly once.
    pub old: String,
    /// The text that replaces `old`.
    pub new: String,
}

impl BugScript {
    /// The text of the script after its edits.
    ///
    /// # Errors
    /// When there is no such script, or the old text of an edit does not occur exactly once.
    pub fn text(&self) -> Result<String, String> {
        let known = || FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let text = FILES.iter().find(|(name, _)| *name == self.file).map(|(_, text)| *text);
        let mut text =
            text.ok_or_else(|| format!("`{}` is not one of {}", self.file, known()))?.to_owned();
        for ScriptEdit { old, new } in &self.edit {
            match text.matches(old.as_str()).count() {
                1 => text = text.replacen(old.as_str(), new, 1),
                count => return Err(format!("`{old}` occurs {count} times in {}", self.file)),
            }
        }
        Ok(text)
    }

    /// Writes the script, and the modules that it imports, into a directory.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        for (name, text) in FILES {
            fs::write(dir.join(name), text)?;
        }
        fs::write(dir.join(&self.file), self.text().map_err(io::Error::other)?)
    }

    /// The arguments that make an interpreter start the script.
    pub fn command(&self) -> Vec<String> {
        let torchrun = self
            .ranks
            .map(|ranks| format!("-m torch.distributed.run --standalone --nproc-per-node {ranks}"));
        let words = torchrun.as_deref().unwrap_or_default().split_whitespace();
        words.map(str::to_owned).chain([self.file.clone()]).chain(split(&self.flags)).collect()
    }

    /// The options of `zprobe exec`, word by word.
    pub fn exec_options(&self) -> Vec<String> {
        split(&self.options)
    }
}

/// The words of a text that was checked when its row was read.
fn split(text: &str) -> Vec<String> {
    shlex::split(text).unwrap_or_default()
}
