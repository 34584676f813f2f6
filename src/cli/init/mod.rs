//! `zprobe init`: writes the files of a CI gate, for the engines and the DeepSpeed files of this project.

mod files;
mod search;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pep440_rs::Version;
use zprobe_engines::TORCH;
use zprobe_lab::console::{self, say};
use zprobe_lab::doctor::{CheckState, DoctorCheck, PythonFacts, engines};
use zprobe_lab::limits::examine;
use zprobe_model::spec::{DeepSpeedFile, Engine};
use zprobe_report::Exit;
use zprobe_report::words::amount;
use zprobe_zoo::Packages;

use super::{config, interpreter, run};
use files::{ConfigurationProbe, Gate, ScriptProbe};

/// The arguments of `zprobe init`.
#[derive(clap::Args)]
pub struct InitArgs {
    #[command(flatten)]
    python: interpreter::Python,

    /// Check this training script: the command that starts it, in quotes
    #[arg(long, value_name = "CMD")]
    script: Option<String>,

    /// Also write .pre-commit-config.yaml, with a hook that runs `zprobe check`
    #[arg(long)]
    pre_commit: bool,

    /// Replace existing files
    #[arg(long)]
    force: bool,

    /// Print the files instead of writing them
    #[arg(long)]
    dry_run: bool,

    /// Seconds that the interpreter may take; importing torch and DeepSpeed takes up to 30
    #[arg(long, value_name = "SECS", default_value_t = 120, env = "ZPROBE_TIMEOUT")]
    timeout: u64,
}

pub fn main(args: &InitArgs) -> Result<Exit> {
    refuse_place()?;
    if args.pre_commit && !args.dry_run {
        refuse_hook()?;
    }
    let has_gate = files::ALWAYS.iter().all(|path| Path::new(path).exists());
    if args.pre_commit && has_gate && !args.force && !args.dry_run {
        // The other files exist, so that only the hook is written.
        let (path, text) = files::pre_commit();
        write(&path, &text, false)?;
        return Ok(Exit::Clean);
    }
    let is_careful = !args.force && !args.dry_run;
    if is_careful {
        // This comes before the query of the interpreter, which takes a while.
        refuse_replaced(files::ALWAYS)?;
    }
    if let Some(command) = &args.script {
        ScriptProbe::new(command, &[])?;
    }
    let chosen = args.python.choose();
    let (machine, python) = examine(&chosen.path, Duration::from_secs(args.timeout));
    let checks = engines(&machine, &python);
    // The checks are in the order of `Engine::CHOICES`.
    let there: Vec<(Engine, &DoctorCheck)> = Engine::CHOICES
        .iter()
        .copied()
        .zip(&checks)
        .filter(|(engine, check)| {
            check.state == CheckState::Ok && zprobe_engines::of(*engine).is_real()
        })
        .collect();
    let Ok(python) = python else { bail!("{}", reason(&checks)) };
    ensure!(!there.is_empty(), "no engine can run with Python {chosen}: {}", reason(&checks));
    say(format_args!("Python {chosen}"));
    for (engine, check) in &there {
        say(format_args!("found: {engine}, {}", check.detail));
    }
    let configurations = configurations(&there)?;
    let script = args.script.as_ref().map(|command| ScriptProbe::new(command, &configurations));
    let gate = Gate {
        engines: gated(&there),
        packages: packages(&python)?,
        python_version: python.version.clone(),
        python: args.python.named().and_then(|path| inside(&path)),
        script: script.transpose()?,
        configurations,
        requirements: Path::new(files::REQUIREMENTS).is_file(),
    };
    let mut wanted = gate.files()?;
    if args.pre_commit {
        wanted.push(files::pre_commit());
    }
    if args.dry_run {
        let shown = wanted.iter().map(|(path, text)| format!("==> {path} <==\n{text}"));
        console::plain(&shown.collect::<Vec<_>>().join("\n"))?;
        return Ok(Exit::Clean);
    }
    if is_careful {
        refuse_replaced(wanted.iter().map(|(path, _)| path.as_str()))?;
    }
    for (path, text) in &wanted {
        write(path, text, args.force)?;
    }
    let outside = args.python.named().filter(|_| gate.python.is_none());
    let path = outside.map(|path| path.display().to_string()).unwrap_or_default();
    let python = match path.as_str() {
        "" => String::new(),
        path => format!(" --python {}", shlex::try_quote(path)?),
    };
    if gate.script.is_none() {
        say(format_args!(
            "note: a probe with [exec] checks your own script; zprobe init --force --script \"torchrun train.py\" \
             writes it (docs/gate-it-in-ci.md)"
        ));
    }
    say(format_args!("next: zprobe check{python}"));
    Ok(Exit::Clean)
}

/// Refuses a directory below the root of a repository, because GitHub reads workflows only in the root.
fn refuse_place() -> Result<()> {
    let dir = std::env::current_dir().context("cannot find the working directory")?;
    let root = dir.ancestors().find(|dir| dir.join(".git").exists());
    match root {
        Some(root) if root != dir => bail!(
            "the workflow belongs in the root of the repository; run `zprobe init` in {}",
            root.display()
        ),
        _ => Ok(()),
    }
}

/// The reason why no engine can run: that of the first real engine.
fn reason(checks: &[DoctorCheck]) -> String {
    let real = Engine::CHOICES.iter().zip(checks);
    let check = real.filter(|(engine, _)| zprobe_engines::of(**engine).is_real()).map(|it| it.1);
    check
        .map(|check| format!("{}; {}", check.detail, check.advice.unwrap_or_default()))
        .next()
        .unwrap_or_default()
}

/// The engines that the gate checks: those with a package of their own (installed on purpose, presumably), or else
/// all that come with torch.
fn gated(there: &[(Engine, &DoctorCheck)]) -> Vec<Engine> {
    let package = |engine: &Engine| {
        zprobe_engines::of(*engine).python.as_ref().is_some_and(|it| it.package.is_some())
    };
    let engines = || there.iter().map(|(engine, _)| *engine);
    let own: Vec<Engine> = engines().filter(package).collect();
    if own.is_empty() { engines().collect() } else { own }
}

/// The installed packages of all engines with their release versions; a build's local suffix (`+cpu`) is cut off.
fn packages(python: &PythonFacts) -> Result<Packages> {
    let installed = zprobe_engines::packages().filter_map(|package| {
        let version = python.version(&package).value()?.clone();
        (!version.is_empty() || package == TORCH).then_some((package.module.to_owned(), version))
    });
    installed
        .map(|(name, version)| {
            let release = version.split('+').next().unwrap_or_default();
            let release: Version =
                release.parse().with_context(|| format!("{name} {version}: not a version"))?;
            Ok((name, release))
        })
        .collect()
}

/// The DeepSpeed files of this project that can run. Prints the reason for each file that cannot.
fn configurations(there: &[(Engine, &DoctorCheck)]) -> Result<Vec<ConfigurationProbe>> {
    let takes = |engine: &Engine| engine.traits().deepspeed_file == DeepSpeedFile::PassedOn;
    let Some(engine) = there.iter().map(|(engine, _)| *engine).find(takes) else {
        return Ok(Vec::new());
    };
    let mut own = Vec::new();
    let found = search::deepspeed_files(Path::new("."))?;
    if found.more > 0 {
        let files = amount(found.more, "more DeepSpeed file");
        say(format_args!("left out: {files}; write probes for them like the generated ones"));
    }
    if found.is_cut {
        say(
            "left out: all files after the first 20,000 directory entries, in the order of their names",
        );
    }
    for file in found.files {
        let arguments = ["--engine", engine.name(), "--deepspeed-config", &file].map(str::to_owned);
        match run::spec(&arguments) {
            Ok(_) => {
                say(format_args!("found: {file}"));
                own.push(ConfigurationProbe::new(engine, file, &own));
            }
            Err(error) => say(format_args!("left out: {error:#}")),
        }
    }
    Ok(own)
}

/// The path relative to the working directory; `None` for a path outside of it, which other users of the project do
/// not have.
fn inside(path: &Path) -> Option<String> {
    let dir = std::env::current_dir().ok()?;
    let path = std::path::absolute(path).ok()?;
    Some(path.strip_prefix(dir).ok()?.to_str()?.to_owned())
}

/// Refuses to replace the project's hooks, even with `--force`, because most of them belong to other programs.
fn refuse_hook() -> Result<()> {
    let (path, text) = files::pre_commit();
    ensure!(
        !Path::new(&path).exists(),
        "{path} is there already and is never replaced; add this to it, and leave out --pre-commit:\n\n{text}"
    );
    Ok(())
}

/// Refuses to replace one of these files, or to override existing settings of zprobe, for example in `pyproject.toml`.
fn refuse_replaced<'a>(files: impl IntoIterator<Item = &'a str>) -> Result<()> {
    if let Some(path) = files.into_iter().find(|path| Path::new(path).exists()) {
        bail!(
            "{path} is there already; --force replaces it, and --dry-run prints the files instead of writing them"
        );
    }
    if let Some(found) = config::Choice::default().find(Path::new("."))? {
        bail!(
            "{} already has settings of zprobe; --force writes {}, which is then read instead",
            found.path.strip_prefix(".").unwrap_or(&found.path).display(),
            config::FILE
        );
    }
    Ok(())
}

fn write(path: &str, text: &str, force: bool) -> Result<()> {
    let dir = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut options = OpenOptions::new();
    options.write(true);
    // A file that was created in the meantime is not replaced, either.
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = fs::create_dir_all(dir)
        .and_then(|()| options.open(path))
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {path}"))?;
    say(format_args!("wrote {path}"));
    Ok(())
}
