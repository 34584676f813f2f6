//! Which probes are run, on which engines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, Args as _};
use zprobe::document::{Document, nearest};
use zprobe::probe::{Probe, registry};
use zprobe::spec::settings::{self, About};
use zprobe::spec::{Engine, RunSpec};

use crate::cli::{flags, run};

/// A probe, where it is from, and the arguments that it gives to a run.
pub struct Chosen {
    pub probe: Probe,
    /// Its file from the working directory; none for those of zprobe.
    pub file: Option<String>,
    arguments: Vec<String>,
}

impl Chosen {
    /// What follows `zprobe run` on an engine.
    fn arguments_on(&self, engine: Engine) -> Vec<String> {
        let engine = ["--engine".to_owned(), engine.to_string()];
        engine.into_iter().chain(self.arguments.iter().cloned()).collect()
    }
}

/// A probe on one engine.
pub struct Task<'a> {
    pub chosen: &'a Chosen,
    pub engine: Engine,
    /// What is run.
    pub spec: RunSpec,
}

impl Task<'_> {
    /// `deepspeed/stage1-bf16`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.engine, self.chosen.probe.name)
    }

    /// What follows `zprobe run`, apart from where and with which Python.
    pub fn arguments(&self) -> Vec<String> {
        self.chosen.arguments_on(self.engine)
    }

    /// What to type to run it by itself.
    pub fn command(&self, python: Option<&Path>) -> String {
        let mut words = vec!["zprobe".to_owned(), "run".to_owned()];
        words.extend(self.arguments());
        if let Some(python) = python.filter(|_| self.engine != Engine::Native) {
            words.extend(["--python".to_owned(), python.display().to_string()]);
        }
        // Only a word with a zero byte cannot be quoted, and none comes in through a command line.
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
    }
}

/// The probes that are named; without names, the standard suite.
pub fn probes(names: &[String]) -> Result<Vec<Chosen>> {
    let standard = registry::probes()?;
    if names.is_empty() {
        return standard.into_iter().map(|probe| chosen(probe, None)).collect();
    }
    let dir = std::env::current_dir().context("cannot find the working directory")?;
    let mut all: BTreeMap<String, Chosen> = BTreeMap::new();
    for name in names {
        let found = match files(name)? {
            Some(files) => files.iter().map(|path| read(path, &dir)).collect::<Result<_>>()?,
            None => vec![chosen(one(name, &standard)?, None)?],
        };
        for it in found {
            let known = all.get(&it.probe.name).filter(|known| known.file != it.file);
            if let Some(Chosen { file, .. }) = known {
                let name = &it.probe.name;
                let place = |file: &Option<String>| match file {
                    Some(file) => file.clone(),
                    None => "zprobe's own".to_owned(),
                };
                let (a, b) = (place(file), place(&it.file));
                bail!("two probes are called `{name}`, {a} and {b}; rename one of the files");
            }
            all.insert(it.probe.name.clone(), it);
        }
    }
    Ok(all.into_values().collect())
}

/// The files that a name stands for, if it is a file or a directory.
fn files(name: &str) -> Result<Option<Vec<PathBuf>>> {
    let path = Path::new(name);
    if path.is_dir() {
        let unreadable = || format!("cannot read {name}");
        let entries = fs::read_dir(path).with_context(unreadable)?;
        let paths = entries.map(|entry| Ok(entry?.path()));
        let mut paths = paths.collect::<std::io::Result<Vec<_>>>().with_context(unreadable)?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        ensure!(!paths.is_empty(), "{name}: no probe in this directory (no file NAME.toml)");
        return Ok(Some(paths));
    }
    let is_file = name.ends_with(".toml") || name.contains('/');
    Ok(is_file.then(|| vec![path.to_owned()]))
}

fn read(path: &Path, dir: &Path) -> Result<Chosen> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = shown(path, dir);
    chosen(Probe::read(Document { file: file.clone(), text })?, Some(file))
}

/// A path as it is seen from a directory.
pub fn shown(path: &Path, dir: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.strip_prefix(dir).unwrap_or(path).display().to_string()
}

fn one(name: &str, standard: &[Probe]) -> Result<Probe> {
    if let Some(probe) = standard.iter().find(|probe| probe.name == name) {
        return Ok(probe.clone());
    }
    match nearest(name, standard.iter().map(|probe| probe.name.as_str())) {
        Some(meant) => bail!("{name}: no such probe; did you mean `{meant}`?"),
        None => bail!(
            "{name}: no such probe, nor a file or directory of that name; `zprobe list probes` lists \
             zprobe's own"
        ),
    }
}

fn chosen(probe: Probe, file: Option<String>) -> Result<Chosen> {
    let command = run::Args::augment_args(clap::Command::new("zprobe run"));
    let base = file.as_deref().and_then(|file| Path::new(file).parent());
    let base = base.unwrap_or(Path::new(""));
    let given = flags::read(&command, &probe.run, &probe.document, base, is_setting)?;
    let arguments = given.iter().flat_map(flags::Given::arguments).collect();
    Ok(Chosen { probe, file, arguments })
}

/// Whether a flag of `zprobe run` is about what is run, and not about where, with what, or what comes
/// out of it.
fn is_setting(arg: &Arg) -> bool {
    let mut settings =
        settings::ALL.iter().filter(|setting| setting.describe().about == About::What);
    let id = arg.get_id().as_str();
    id == "deepspeed_config" || settings.any(|setting| setting.id() == id)
}

/// What is run, engine by engine.
pub fn tasks<'a>(probes: &'a [Chosen], args: &super::Args) -> Result<Vec<Task<'a>>> {
    let mut pairs = Vec::new();
    for &engine in Engine::ALL {
        if !args.engine.is_empty() && !args.engine.contains(&engine) {
            continue;
        }
        let on_it = probes.iter().filter(|chosen| chosen.probe.engines.contains(&engine));
        pairs.extend(on_it.map(|chosen| (chosen, engine)));
    }
    for engine in &args.engine {
        ensure!(
            pairs.iter().any(|(_, on)| on == engine),
            "--engine {engine}: no probe is for this engine"
        );
    }
    pairs.retain(|(chosen, engine)| wanted(chosen, *engine, &args.filter));
    ensure!(!pairs.is_empty(), "--filter {}: no case is left to run", args.filter.join(", "));
    pairs.into_iter().map(|(chosen, engine)| task(chosen, engine)).collect()
}

/// A probe on an engine, if `zprobe run` takes it.
fn task(chosen: &Chosen, engine: Engine) -> Result<Task<'_>> {
    let spec = run::Args::parse(&chosen.arguments_on(engine))?.spec(None);
    let file = &chosen.probe.document.file;
    let spec = spec.with_context(|| format!("{file}, on the {engine} engine"))?;
    Ok(Task { chosen, engine, spec })
}

/// Whether the filters let it pass.
fn wanted(chosen: &Chosen, engine: Engine, filter: &[String]) -> bool {
    let probe = &chosen.probe;
    let arguments = chosen.arguments_on(engine).join(" ");
    let words = [format!("{engine}/{}", probe.name), probe.description.clone(), arguments];
    filter.iter().all(|text| words.iter().any(|word| word.contains(text)))
}

/// A line for each case.
pub fn list(tasks: &[Task<'_>]) -> String {
    let width = tasks.iter().map(|task| task.id().len()).max().unwrap_or(0);
    let line = |task: &Task<'_>| {
        format!("{:width$}  zprobe run {}\n", task.id(), task.arguments().join(" "))
    };
    tasks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_of_the_standard_suite_can_be_run_on_each_of_its_engines() {
        for chosen in probes(&[]).unwrap() {
            for &engine in &chosen.probe.engines {
                let task = task(&chosen, engine).unwrap_or_else(|err| panic!("{err:#}"));
                assert_eq!(
                    (task.spec.engine(), task.spec.world_size),
                    (engine, 2),
                    "{}",
                    task.id()
                );
            }
        }
    }

    #[test]
    fn no_two_probes_of_the_standard_suite_make_the_same_run() {
        let chosen = probes(&[]).unwrap();
        for (at, one) in chosen.iter().enumerate() {
            for other in &chosen[..at] {
                let same =
                    one.arguments == other.arguments && one.probe.engines == other.probe.engines;
                assert!(!same, "{} and {}", one.probe.name, other.probe.name);
            }
        }
    }

    #[test]
    fn settings_of_a_probe_are_settings_of_a_run_and_not_of_its_report() {
        let read = |text: &str| {
            let document = Document { file: "ci/own.toml".to_owned(), text: text.to_owned() };
            chosen(Probe::read(document).unwrap(), Some("ci/own.toml".to_owned()))
        };
        let own = read(
            "description = 'Own'\n[run]\nstage = 2\nshape = ['tied', 'frozen']\noffload = 'cpu'\n\
             overlap_comm = true\ndeepspeed-config = 'ds.json'\n",
        );
        let expected = "--deepspeed-config ci/ds.json --offload cpu --overlap-comm true --shape tied \
                        --shape frozen --stage 2";
        assert_eq!(own.unwrap().arguments.join(" "), expected);
        for key in ["engine = 'ddp'", "out = 'x'", "output-format = 'json'", "python = 'python3'"] {
            let error = read(&format!("description = 'Own'\n[run]\n{key}\n"));
            let error = error.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("ci/own.toml:3:1: no such key"), "{key}: {error}");
        }
    }
}
