//! The bootstrap directory: the Python code that watches the script from inside its processes.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::ExecRequest;
use crate::adapters;
use crate::stack_signal;
use zprobe_model::run_dir;
use zprobe_model::spec::UNIT;

/// The Python files of the watch code, each with its path in the bootstrap directory and its text.
const FILES: &[(&str, &str)] = &[
    ("sitecustomize.py", include_str!("attach/sitecustomize.py")),
    ("zprobe_exec/__init__.py", include_str!("attach/zprobe_exec/__init__.py")),
    ("zprobe_exec/agreement.py", include_str!("attach/zprobe_exec/agreement.py")),
    ("zprobe_exec/arithmetic.py", include_str!("attach/zprobe_exec/arithmetic.py")),
    ("zprobe_exec/asides.py", include_str!("attach/zprobe_exec/asides.py")),
    ("zprobe_exec/between.py", include_str!("attach/zprobe_exec/between.py")),
    ("zprobe_exec/channel.py", include_str!("attach/zprobe_exec/channel.py")),
    ("zprobe_exec/clipping.py", include_str!("attach/zprobe_exec/clipping.py")),
    ("zprobe_exec/coded.py", include_str!("attach/zprobe_exec/coded.py")),
    ("zprobe_exec/engine.py", include_str!("attach/zprobe_exec/engine.py")),
    ("zprobe_exec/fragments.py", include_str!("attach/zprobe_exec/fragments.py")),
    ("zprobe_exec/fused.py", include_str!("attach/zprobe_exec/fused.py")),
    ("zprobe_exec/gaps.py", include_str!("attach/zprobe_exec/gaps.py")),
    ("zprobe_exec/in_vain.py", include_str!("attach/zprobe_exec/in_vain.py")),
    ("zprobe_exec/leaves.py", include_str!("attach/zprobe_exec/leaves.py")),
    ("zprobe_exec/loss.py", include_str!("attach/zprobe_exec/loss.py")),
    ("zprobe_exec/mailbox.py", include_str!("attach/zprobe_exec/mailbox.py")),
    ("zprobe_exec/main_grad.py", include_str!("attach/zprobe_exec/main_grad.py")),
    ("zprobe_exec/meshes.py", include_str!("attach/zprobe_exec/meshes.py")),
    ("zprobe_exec/modules.py", include_str!("attach/zprobe_exec/modules.py")),
    ("zprobe_exec/names.py", include_str!("attach/zprobe_exec/names.py")),
    ("zprobe_exec/objects.py", include_str!("attach/zprobe_exec/objects.py")),
    ("zprobe_exec/observed.py", include_str!("attach/zprobe_exec/observed.py")),
    ("zprobe_exec/outputs.py", include_str!("attach/zprobe_exec/outputs.py")),
    ("zprobe_exec/overflow.py", include_str!("attach/zprobe_exec/overflow.py")),
    ("zprobe_exec/padding.py", include_str!("attach/zprobe_exec/padding.py")),
    ("zprobe_exec/places.py", include_str!("attach/zprobe_exec/places.py")),
    ("zprobe_exec/process.py", include_str!("attach/zprobe_exec/process.py")),
    ("zprobe_exec/refusals.py", include_str!("attach/zprobe_exec/refusals.py")),
    ("zprobe_exec/remarks.py", include_str!("attach/zprobe_exec/remarks.py")),
    ("zprobe_exec/rounding.py", include_str!("attach/zprobe_exec/rounding.py")),
    ("zprobe_exec/silence.py", include_str!("attach/zprobe_exec/silence.py")),
    ("zprobe_exec/stacks.py", include_str!("attach/zprobe_exec/stacks.py")),
    ("zprobe_exec/stamps.py", include_str!("attach/zprobe_exec/stamps.py")),
    ("zprobe_exec/start.py", include_str!("attach/zprobe_exec/start.py")),
    ("zprobe_exec/stepping.py", include_str!("attach/zprobe_exec/stepping.py")),
    ("zprobe_exec/terms.py", include_str!("attach/zprobe_exec/terms.py")),
    ("zprobe_exec/training.py", include_str!("attach/zprobe_exec/training.py")),
    ("zprobe_exec/transforms.py", include_str!("attach/zprobe_exec/transforms.py")),
    ("zprobe_exec/turns.py", include_str!("attach/zprobe_exec/turns.py")),
    ("zprobe_exec/undone.py", include_str!("attach/zprobe_exec/undone.py")),
    ("zprobe_exec/update.py", include_str!("attach/zprobe_exec/update.py")),
    ("zprobe_exec/watch.py", include_str!("attach/zprobe_exec/watch.py")),
    ("zprobe_exec/wrapped.py", include_str!("attach/zprobe_exec/wrapped.py")),
];

/// The files of the rank program that the watch code also uses.
const SHARED: [&str; 11] = [
    "__init__.py",
    "channel.py",
    "codes.py",
    "device.py",
    "engines/__init__.py",
    "eyes.py",
    "graph.py",
    "placement.py",
    "records.py",
    "sampler.py",
    "tensors.py",
];

/// The time that a rank waits for messages of the other ranks, in seconds.
const PATIENCE_S: u64 = 60;

/// The name of the file with the settings. Settings are in a file because not every launcher passes environment
/// variables on.
const SETTINGS: &str = "settings.json";

/// Writes the bootstrap directory, and returns its path.
///
/// # Errors
/// Fails if the run directory cannot be written.
pub fn write(
    request: &ExecRequest,
    run_id: &str,
    run_dir: &Path,
    channels: &Path,
    processes: &Path,
) -> io::Result<PathBuf> {
    let bootstrap = run_dir.join("bootstrap");
    run_dir::create_dir(&bootstrap)?;
    let settings = json!({
        "run": run_id,
        "directory": channels,
        "processes": processes,
        "signal": stack_signal(),
        "dry": request.dry,
        "observe": request.observe,
        "seed": request.seed,
        "patience": PATIENCE_S,
        "unit": UNIT,
    });
    let own = FILES.iter().map(|(name, text)| ((*name).to_owned(), *text));
    let shared = adapters::shared(&SHARED).chain(adapters::eyes());
    let files = own.chain(shared).map(|(name, text)| (name, text.to_owned()));
    for (name, text) in files.chain([(SETTINGS.to_owned(), settings.to_string())]) {
        let path = bootstrap.join(name);
        let parent = path.parent().unwrap_or(&bootstrap);
        if !run_dir::is_dir(parent) {
            run_dir::create_dir(parent)?;
        }
        run_dir::create(&path)?.write_all(text.as_bytes())?;
    }
    Ok(bootstrap)
}

/// Returns the value of `PYTHONPATH` with the bootstrap directory before the existing entries.
pub fn python_path(bootstrap: &Path) -> OsString {
    let mut path = bootstrap.as_os_str().to_owned();
    if let Some(own) = env::var_os("PYTHONPATH").filter(|own| !own.is_empty()) {
        path.push(":");
        path.push(own);
    }
    path
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_python_file_is_written() {
        let attach = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exec/attach");
        let mut on_disk: Vec<String> = ["", "zprobe_exec/"]
            .iter()
            .flat_map(|folder| {
                let entries =
                    fs::read_dir(attach.join(folder)).expect("a directory of Python files");
                let names = entries.map(|entry| entry.expect("an entry").file_name());
                names.map(move |name| format!("{folder}{}", name.display())).collect::<Vec<_>>()
            })
            .filter(|name| name.ends_with(".py"))
            .collect();
        on_disk.sort();
        let written: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(on_disk, written);
    }

    /// The watch code includes only a few files of the rank program. A missing file would otherwise be noticed only
    /// when a training script imports torch.
    #[test]
    fn a_shared_file_imports_shared_files_only() {
        let shared = || adapters::shared(&SHARED).chain(adapters::eyes());
        let written: Vec<String> = shared().map(|(path, _)| path).collect();
        for (path, text) in shared() {
            for line in text.lines().map(str::trim) {
                let Some((package, names)) =
                    line.strip_prefix("from ").and_then(|line| line.split_once(" import "))
                else {
                    continue;
                };
                let package = package.replace('.', "/");
                let modules: Vec<String> = match package.as_str() {
                    "zprobe_rank" => {
                        names.split(", ").map(|name| format!("{package}/{name}.py")).collect()
                    }
                    module if module.starts_with("zprobe_rank/") => vec![format!("{module}.py")],
                    _ => Vec::new(),
                };
                for module in modules {
                    assert!(written.contains(&module), "{path} imports {module}");
                }
            }
        }
    }
}
