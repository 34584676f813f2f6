//! The cases of a suite: probes, each paired with the engines that it is run on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, bail, ensure};
use serde_json::json;

use super::probe::{Probe, registry};
use crate::order::{ParseOrder, Ranks};
use crate::table::to_json;
use zprobe_engines as engines;
use zprobe_launch::exec::ExecRequest;
use zprobe_model::document::{Document, nearest};
use zprobe_model::spec::{Engine, Model, RunSpec};
use zprobe_report::Form;

/// Reads the settings of a probe as flags of `zprobe run`, or of `zprobe exec` for a script. Relative paths in them start
/// from the given directory.
pub type ReadSettings<'a> = dyn Fn(&Probe, &Path) -> Result<Vec<String>> + 'a;

/// Parses flags of `zprobe exec` and the command of a script. Of a flag that is given twice, the last one counts.
pub type ParseScript<'a> = dyn Fn(&[String], &[String]) -> Result<ExecRequest> + 'a;

/// The parsers of the command line for the settings of probes.
pub struct Parsers<'a> {
    /// Parses the arguments of a run of an engine.
    pub run: &'a ParseOrder<'a>,
    /// Parses the flags and the command of a script.
    pub exec: &'a ParseScript<'a>,
}

/// A probe, its file, and its arguments for a run.
pub struct ChosenProbe {
    /// The probe that was chosen.
    pub probe: Probe,
    /// The path of the probe's file from the working directory; `None` for probes that are part of zprobe.
    pub file: Option<String>,
    /// The settings of the probe as flags of `zprobe run`, or of `zprobe exec` for a script.
    pub arguments: Vec<String>,
}

impl ChosenProbe {
    /// The arguments for the probe on an engine: those of `zprobe run`, or those of `zprobe exec` for a script.
    fn arguments_on(&self, engine: Engine) -> Vec<String> {
        if engine == Engine::Script {
            return [&self.arguments[..], &self.probe.command].concat();
        }
        let engine = ["--engine".to_owned(), engine.to_string()];
        engine.into_iter().chain(self.arguments.iter().cloned()).collect()
    }
}

/// A case that is going to be run: a probe on one engine.
pub struct PlannedCase<'a> {
    /// The probe of the case.
    pub chosen: &'a ChosenProbe,
    /// The engine of the case.
    pub engine: Engine,
    /// The run of the case.
    pub run: PlannedRun,
    /// The command line that makes only this run.
    pub command: String,
}

/// The run of a case.
pub enum PlannedRun {
    /// A run of an engine, with the settings of the run and the source of its ranks.
    OfEngine(Box<RunSpec>, Ranks),
    /// A run of a training script.
    OfScript {
        /// The arguments of `zprobe exec`: its flags, `--`, and the command.
        arguments: Vec<String>,
        /// The directory in which the programs of the command are looked up first.
        programs: Option<PathBuf>,
    },
}

impl PlannedCase<'_> {
    /// The name of the case, by engine and probe: `deepspeed/stage1-bf16`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.engine, self.chosen.probe.name)
    }
}

/// The probes that the user has chosen.
pub struct ChosenProbes {
    /// The probes that could be read.
    pub probes: Vec<ChosenProbe>,
    /// The reasons why other probes could not be read.
    problems: Vec<Error>,
}

/// The probes that the names stand for; without names, the standard suite.
pub fn probes(names: &[String], settings: &ReadSettings<'_>) -> Result<ChosenProbes> {
    let chosen = |probe, file| chosen(probe, file, settings);
    let standard = registry::probes()?;
    if names.is_empty() {
        let probes: Result<_> = standard.into_iter().map(|probe| chosen(probe, None)).collect();
        return Ok(ChosenProbes { probes: probes?, problems: vec![] });
    }
    let mut problems = Vec::new();
    let dir = std::env::current_dir().context("cannot find the working directory")?;
    let mut all: BTreeMap<String, ChosenProbe> = BTreeMap::new();
    for name in names {
        let read = |path: &PathBuf| {
            let (probe, file) = read(path, &dir)?;
            chosen(probe, Some(file))
        };
        let found = match files(name) {
            Ok(Some(files)) => files.iter().map(read).collect(),
            Ok(None) => vec![one(name, &standard).and_then(|probe| chosen(probe, None))],
            Err(problem) => vec![Err(problem)],
        };
        for it in found {
            let it = match it {
                Ok(it) => it,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let known = all.get(&it.probe.name).filter(|known| known.file != it.file);
            if let Some(ChosenProbe { file, .. }) = known {
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
    Ok(ChosenProbes { probes: all.into_values().collect(), problems })
}

/// The probe files that a name stands for; `None` if the name is neither a file nor a directory.
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
    if let Some((engine, probe)) = name.split_once('/')
        && Engine::CHOICES.iter().any(|it| it.name() == engine)
        && !path.exists()
    {
        bail!(
            "{name}: no such file; a probe is named without its engine: `zprobe check {probe} --engine {engine}`"
        );
    }
    let is_file = name.ends_with(".toml") || name.contains('/');
    Ok(is_file.then(|| vec![path.to_owned()]))
}

/// Reads a probe from a file, and returns it with the file's path as seen from the directory `dir`.
fn read(path: &Path, dir: &Path) -> Result<(Probe, String)> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = shown(path, dir);
    Ok((Probe::read(Document { file: file.clone(), text })?, file))
}

/// The text of a path as seen from a directory.
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

fn chosen(probe: Probe, file: Option<String>, settings: &ReadSettings<'_>) -> Result<ChosenProbe> {
    let base = file.as_deref().and_then(|file| Path::new(file).parent());
    let arguments = settings(&probe, base.unwrap_or(Path::new("")))?;
    Ok(ChosenProbe { probe, file, arguments })
}

/// The flags of `zprobe check` that choose cases.
pub struct CaseSelection<'a> {
    /// The chosen engines; empty for all engines.
    pub engines: &'a [Engine],
    /// Chooses only cases whose name, description or arguments contain all of these texts.
    pub filter: &'a [String],
    /// The arguments for `--timeout`: after how much silence a rank counts as hung.
    pub timeout: Vec<String>,
    /// The interpreter that the commands of cases name.
    pub python: Option<&'a Path>,
    /// The directory of the environment's programs, which a script's command starts; `None` if only `PATH` decides.
    pub programs: Option<&'a Path>,
}

/// The chosen cases of these probes, engine by engine. The probes of the dense model come last: their weights are
/// estimates, so that a failed probe of the coded model names the cause better.
///
/// # Errors
/// With the reasons for all probes that cannot be read or run.
pub fn tasks<'a>(
    chosen: &'a ChosenProbes,
    choice: &CaseSelection<'_>,
    read: &Parsers<'_>,
) -> Result<Vec<PlannedCase<'a>>> {
    let ChosenProbes { probes, problems } = chosen;
    let mut problems: Vec<String> = problems.iter().map(|it| format!("{it:#}")).collect();
    let mut pairs = Vec::new();
    for &engine in Engine::ALL {
        // A script chooses its engine itself, so that --engine leaves it out of no suite.
        let is_chosen = choice.engines.is_empty() || choice.engines.contains(&engine);
        if !is_chosen && engine != Engine::Script {
            continue;
        }
        let on_it = probes.iter().filter(|chosen| chosen.probe.engines.contains(&engine));
        pairs.extend(on_it.map(|chosen| (chosen, engine)));
    }
    for engine in choice.engines {
        ensure!(
            !problems.is_empty() || pairs.iter().any(|(_, on)| on == engine),
            "--engine {engine}: no probe is for this engine"
        );
    }
    pairs.retain(|(chosen, engine)| wanted(chosen, *engine, choice.filter));
    ensure!(
        !problems.is_empty() || !pairs.is_empty(),
        "--filter {}: no case is left to run",
        choice.filter.join(", ")
    );
    let mut tasks = Vec::new();
    for (chosen, engine) in pairs {
        match task(chosen, engine, choice, read) {
            Ok(task) => tasks.push(task),
            Err(problem) => problems.push(format!("{problem:#}")),
        }
    }
    let place = |engine: Engine| Engine::ALL.iter().position(|it| *it == engine);
    let is_estimate = |run: &PlannedRun| match run {
        PlannedRun::OfEngine(spec, _) => spec.model != Model::Coded,
        PlannedRun::OfScript { .. } => false,
    };
    tasks.sort_by_key(|task| (place(task.engine), is_estimate(&task.run)));
    match problems.as_slice() {
        [] => Ok(tasks),
        [only] => bail!("{only}"),
        many => bail!(
            "{} probes cannot be run:\n  {}",
            many.len(),
            many.join("\n").replace('\n', "\n  ")
        ),
    }
}

/// The case of a probe on an engine, if zprobe accepts its settings.
fn task<'a>(
    chosen: &'a ChosenProbe,
    engine: Engine,
    choice: &CaseSelection<'_>,
    read: &Parsers<'_>,
) -> Result<PlannedCase<'a>> {
    let file = &chosen.probe.document.file;
    if engine == Engine::Script {
        let (run, command) =
            script(chosen, choice, read).with_context(|| format!("{file}, in [exec]"))?;
        return Ok(PlannedCase { chosen, engine, run, command });
    }
    let mut arguments = chosen.arguments_on(engine);
    let mut words = vec!["zprobe".to_owned(), "run".to_owned()];
    words.extend(arguments.iter().cloned());
    if let Some(python) = choice.python.filter(|_| engines::of(engine).is_real()) {
        words.extend(["--python".to_owned(), python.display().to_string()]);
    }
    // Only a word with a NUL byte cannot be quoted, and a command line cannot contain such a word.
    let command =
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "));
    arguments.extend(choice.timeout.iter().cloned());
    let order =
        (read.run)(&arguments).with_context(|| format!("{file}, on the {engine} engine"))?;
    let run = PlannedRun::OfEngine(Box::new(order.spec), order.ranks);
    Ok(PlannedCase { chosen, engine, run, command })
}

/// The run of a script, and the command line that makes only this run. The command line names the programs of the
/// environment if they are not the first on `PATH` anyway.
fn script(
    chosen: &ChosenProbe,
    choice: &CaseSelection<'_>,
    read: &Parsers<'_>,
) -> Result<(PlannedRun, String)> {
    let flags = [&chosen.arguments[..], &choice.timeout].concat();
    let request = (read.exec)(&flags, &chosen.probe.command)?;
    let command = request.spec().command("").context("a script always has a command")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_first = |dir: &&Path| std::env::split_paths(&path).next().as_deref() == Some(*dir);
    let programs = choice.programs.filter(|dir| !is_first(dir)).map(Path::to_owned);
    let mut line = command.line();
    if let Some(dir) = &programs {
        let here = std::env::current_dir().context("cannot find the working directory")?;
        let quoted =
            |path: &Path| anyhow::Ok(shlex::try_quote(&path.to_string_lossy())?.into_owned());
        let dir = match dir.strip_prefix(&here) {
            Ok(rest) if rest.as_os_str().is_empty() => "$PWD".to_owned(),
            Ok(rest) => format!("$PWD/{}", quoted(rest)?),
            Err(_) => quoted(dir)?,
        };
        line = format!("PATH={dir}:$PATH {line}");
    }
    Ok((PlannedRun::OfScript { arguments: command.arguments, programs }, line))
}

/// True if a probe on an engine passes all filters.
fn wanted(chosen: &ChosenProbe, engine: Engine, filter: &[String]) -> bool {
    let probe = &chosen.probe;
    let arguments = chosen.arguments_on(engine).join(" ");
    let words = [format!("{engine}/{}", probe.name), probe.description.clone(), arguments];
    filter.iter().all(|text| words.iter().any(|word| word.contains(text)))
}

/// The cases that would be run: one line for each case, or a JSON document.
///
/// # Errors
/// When the JSON cannot be written, which does not happen.
pub fn list(tasks: &[PlannedCase<'_>], form: Form) -> Result<String> {
    if form == Form::Json {
        let rows = tasks.iter().map(|task| {
            let probe = &task.chosen.probe;
            json!({
                "probe": probe.name,
                "engine": task.engine,
                "description": probe.description,
                "expected": probe.expect.to_string(),
                "command": task.command,
            })
        });
        return to_json(&rows.collect::<Vec<_>>());
    }
    let lines = tasks.iter().map(|task| (task.id(), task.command.as_str())).collect::<Vec<_>>();
    let width = lines.iter().map(|(id, _)| id.len()).max().unwrap_or(0);
    // A command is not wrapped, because users copy it.
    Ok(lines.iter().map(|(id, command)| format!("{id:width$}  {command}\n")).collect())
}
