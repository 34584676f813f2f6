//! Chooses the Python interpreter that has the engines, with the reason, and checks that the engine is installed.
//!
//! The order is that of uv: the named interpreter, the active virtual environment, the active conda environment
//! other than base, zprobe's own virtual environment if it has torch, `.venv` in this directory or above, and then
//! `PATH`.
//!
//! zprobe's own environment matters to users who call zprobe by its path, without activation. An environment only for
//! zprobe, as uvx and pipx create, has no torch. Such an environment is skipped, also on `PATH`, where uvx puts it
//! first.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueHint;
use zprobe_engines::{self as engines, EnginePackage};
use zprobe_lab::doctor::{InterpreterError, absent, found};
use zprobe_lab::python;
use zprobe_model::spec::Engine;

/// The time limit for an interpreter that looks up its packages. It imports none of them, but may take seconds on a
/// busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// zprobe's own virtual environment, queried once; `None` if zprobe is not installed in one.
static OWN: LazyLock<Option<OwnEnvironment>> = LazyLock::new(|| {
    let python = python::own()?;
    let has_torch = absent(&python, &["torch"], PATIENCE).is_ok_and(|absent| absent.is_empty());
    Some(OwnEnvironment { python, has_torch })
});

/// The flag `--python`, which names an interpreter.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Python {
    /// Python that has the engine: an interpreter or a virtual environment
    ///
    /// A virtual environment may also be named by its bin directory. Without this flag, Python is the first of
    /// VIRTUAL_ENV, CONDA_PREFIX, zprobe's own environment if it has torch, .venv in this directory or above, and
    /// python3 on PATH.
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::ExecutablePath,
        env = "ZPROBE_PYTHON"
    )]
    python: Option<PathBuf>,
}

impl Python {
    /// The interpreter for a command without the flag: the one that the flag's variable names, or the first one in the
    /// search order of this module.
    pub fn without_flag() -> Self {
        let named = std::env::var_os("ZPROBE_PYTHON").filter(|path| !path.is_empty());
        Self { python: named.map(PathBuf::from) }
    }

    /// The interpreter that the flag or its variable names; `None` without either.
    pub fn named(&self) -> Option<PathBuf> {
        self.python.as_deref().map(inside)
    }

    /// The named interpreter, or that of the active or closest environment; `None` if at most `PATH` has one.
    pub fn environment(&self) -> Option<Chosen> {
        let dir = std::env::current_dir().unwrap_or_default();
        let own = || OWN.as_ref();
        in_environment(self.python.as_deref(), &|name| std::env::var_os(name), &own, &dir)
    }

    /// The named interpreter, or else the first one in the search order of this module.
    pub fn choose(&self) -> Chosen {
        let dir = std::env::current_dir().unwrap_or_default();
        let own = || OWN.as_ref();
        choose(self.python.as_deref(), &|name| std::env::var_os(name), &own, &dir)
    }
}

/// The flag `--python` of a command that needs an interpreter only for TensorBoard's events.
#[derive(clap::Args)]
pub struct EventsPython {
    /// With --export-tensorboard: Python that has the package tensorboard, an interpreter or a virtual environment
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::ExecutablePath,
        requires = "export_tensorboard"
    )]
    python: Option<PathBuf>,
}

impl EventsPython {
    /// The named interpreter, or that of a command without the flag.
    pub fn python(&self) -> Python {
        match &self.python {
            Some(named) => Python { python: Some(named.clone()) },
            None => Python::without_flag(),
        }
    }
}

/// A Python interpreter, and the reason for choosing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The path of the interpreter, or a name to look up in `PATH`.
    pub path: PathBuf,
    why: String,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.why)
    }
}

impl Chosen {
    /// The interpreter of an environment that was created for `--package`.
    pub fn provided(path: PathBuf) -> Self {
        Self { path, why: "made for --package".to_owned() }
    }

    /// The engine that is installed in the interpreter's environment: DeepSpeed, or else DDP; `None` without both.
    ///
    /// # Errors
    /// If the interpreter does not start.
    pub fn engine(&self) -> Result<Option<Engine>> {
        let absent = absent(&self.path, &["torch", "deepspeed"], PATIENCE)
            .with_context(|| format!("cannot look up the engines of {self}"))?;
        Ok(engines::preferred(|module| absent.iter().all(|it| it != module)))
    }

    /// Fails if the interpreter does not start, or if a package is not installed in its environment.
    ///
    /// # Errors
    /// One line with the package, the interpreter and the remedy.
    pub fn must_have_package(&self, package: &str) -> Result<()> {
        let absent = absent(&self.path, &[package], PATIENCE)
            .with_context(|| format!("cannot look for {package} in {self}"))?;
        ensure!(
            absent.is_empty(),
            "{package} is not installed in {self}; install it there (`pip install {package}`), or name another \
             Python with --python"
        );
        Ok(())
    }

    /// Fails if the interpreter does not start, or if the engine's packages are not installed. Other problems are left
    /// to the ranks, whose errors are more specific.
    ///
    /// # Errors
    /// One line with the missing package and the remedy.
    pub fn must_have(&self, engine: Engine) -> Result<()> {
        let Some(needs) = &engines::of(engine).python else { return Ok(()) };
        let modules: Vec<&str> = needs.packages().map(|package| package.module).collect();
        let absent = match absent(&self.path, &modules, PATIENCE) {
            Ok(absent) => absent,
            Err(error @ InterpreterError::Start { .. }) => {
                return Err(error).with_context(|| {
                    format!(
                        "no Python with the {engine} engine was found ({}); name one with --python",
                        self.why
                    )
                });
            }
            Err(_) => return Ok(()),
        };
        let is_absent =
            |package: &EnginePackage| absent.iter().any(|module| module == package.module);
        if let Some(EnginePackage { module, title }) = needs.packages().find(is_absent) {
            bail!(
                "{title} is not installed in {self}; install it there (`pip install {module}`), or name \
                 another Python with --python"
            );
        }
        Ok(())
    }
}

/// A warning if `dir` is a checkout of the engine but the interpreter imports the engine from elsewhere, so that every
/// commit would get the same verdict.
pub fn elsewhere(python: &Chosen, engine: Engine, dir: &Path) -> Option<String> {
    let package = engines::of(engine).python.as_ref()?.packages().last()?;
    let EnginePackage { module, title } = package;
    let is_here =
        ["", "src"].iter().any(|it| dir.join(it).join(module).join("__init__.py").is_file());
    let file = found(&python.path, &[module], PATIENCE).ok()?.remove(module).flatten()?;
    let is_inside = file.canonicalize().ok()?.starts_with(dir.canonicalize().ok()?);
    (is_here && !is_inside).then(|| {
        format!(
            "this checkout contains {module}, but {} imports {}: unless {title} is reinstalled there for each \
             commit, all commits get the same verdict; `pip install --editable .` makes it import the checkout",
            python.path.display(),
            file.display()
        )
    })
}

/// The interpreter in a virtual environment or its bin directory; a path that is no directory is returned as it is.
pub fn inside(path: &Path) -> PathBuf {
    if !path.is_dir() {
        return path.to_owned();
    }
    let places = ["bin/python", "bin/python3", "python", "python3"].map(|name| path.join(name));
    let found = places.iter().find(|place| place.is_file()).unwrap_or(&places[0]);
    found.clone()
}

/// zprobe's own virtual environment.
struct OwnEnvironment {
    python: PathBuf,
    has_torch: bool,
}

/// The named interpreter, or the first one of an environment, in the order of the module documentation.
fn in_environment<'own>(
    named: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<OsString>,
    own: &dyn Fn() -> Option<&'own OwnEnvironment>,
    dir: &Path,
) -> Option<Chosen> {
    if let Some(path) = named {
        let why = "named by --python, ZPROBE_PYTHON or the configuration file".to_owned();
        return Some(Chosen { path: inside(path), why });
    }
    let from_variable = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        let why = format!("chosen because {name}={}", value.display());
        Some(Chosen { path: environment(Path::new(&value))?, why })
    };
    // As in uv, conda's shared base environment does not precede an environment of the project. An active base is found
    // on PATH.
    let is_base =
        variable("CONDA_DEFAULT_ENV").is_some_and(|name| name == "base" || name == "root");
    let conda = || from_variable("CONDA_PREFIX").filter(|_| !is_base);
    let with_torch = || {
        let OwnEnvironment { python, .. } = own().filter(|own| own.has_torch)?;
        let why = "chosen because zprobe and torch are installed there".to_owned();
        Some(Chosen { path: python.clone(), why })
    };
    from_variable("VIRTUAL_ENV").or_else(conda).or_else(with_torch).or_else(|| nearby(dir))
}

/// The first existing interpreter, in the order of the module documentation.
fn choose<'own>(
    named: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<OsString>,
    own: &dyn Fn() -> Option<&'own OwnEnvironment>,
    dir: &Path,
) -> Chosen {
    in_environment(named, variable, own, dir)
        .or_else(|| on_path(variable("PATH").as_ref(), own()))
        .unwrap_or_else(|| {
            let none = "no virtual environment is active, there is no .venv here or above, and no";
            match own() {
                Some(OwnEnvironment { python, .. }) => Chosen {
                    path: python.clone(),
                    why: format!("zprobe's own environment: {none} other python3 on PATH"),
                },
                None => Chosen { path: "python3".into(), why: format!("{none} python3 on PATH") },
            }
        })
}

/// The interpreter of an environment; `None` if there is none.
fn environment(path: &Path) -> Option<PathBuf> {
    Some(inside(path)).filter(|found| found != path && found.is_file())
}

/// The closest environment of `dir` and the directories above it: a `.venv` in such a directory, or the directory
/// itself.
fn nearby(dir: &Path) -> Option<Chosen> {
    dir.ancestors().find_map(|dir| {
        let own = [dir.join(".venv"), dir.to_owned()];
        let is_environment = |path: &&PathBuf| path.join("pyvenv.cfg").is_file();
        let found = own.iter().find(is_environment)?;
        let why = format!("chosen because of {}", found.display());
        Some(Chosen { path: environment(found)?, why })
    })
}

/// The first interpreter on this `PATH` that is not in zprobe's own environment.
fn on_path(path: Option<&OsString>, own: Option<&OwnEnvironment>) -> Option<Chosen> {
    let bin = |python: &Path| python.parent()?.canonicalize().ok();
    let is_own = |found: &PathBuf| own.is_some_and(|own| bin(found) == bin(&own.python));
    ["python3", "python"].into_iter().find_map(|name| {
        let found = which::which_in_global(name, path).ok()?.find(|found| !is_own(found))?;
        Some(Chosen { path: found, why: format!("the first {name} on PATH") })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A temporary directory with dummy interpreters at these paths.
    fn place(interpreters: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in interpreters {
            let path = dir.path().join(name);
            let bin = path.parent().unwrap();
            fs::create_dir_all(bin).unwrap();
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            if bin.ends_with("bin") {
                fs::write(bin.parent().unwrap().join("pyvenv.cfg"), "").unwrap();
            }
        }
        dir
    }

    #[test]
    fn an_engine_that_is_not_of_this_checkout_is_warned_of() {
        let place = place(&["venv/bin/python"]);
        let dir = place.path();
        fs::create_dir_all(dir.join("checkout/deepspeed")).unwrap();
        fs::create_dir_all(dir.join("venv/lib")).unwrap();
        let (own, other) =
            (dir.join("checkout/deepspeed/__init__.py"), dir.join("venv/lib/other.py"));
        fs::write(&own, "").unwrap();
        fs::write(&other, "").unwrap();
        let python = Chosen::provided(dir.join("venv/bin/python"));
        let warned = |dir: &Path, imported: &Path| {
            let answer =
                format!("#!/bin/sh\necho '{{\"deepspeed\": \"{}\"}}'\n", imported.display());
            fs::write(&python.path, answer).unwrap();
            elsewhere(&python, Engine::DeepSpeed, dir)
        };
        let text = warned(&dir.join("checkout"), &other).unwrap();
        assert!(text.contains("other.py") && text.contains("--editable"), "{text}");
        assert_eq!(warned(&dir.join("checkout"), &own), None);
        // This directory is no checkout of the engine.
        assert_eq!(warned(dir, &other), None);
    }

    /// The interpreter that is chosen in `HERE/project/deep` with these variables; `HERE` stands for the directory
    /// `place`.
    fn chosen(
        place: &tempfile::TempDir,
        named: Option<&str>,
        variables: &[(&str, &str)],
    ) -> String {
        let here = place.path().to_str().unwrap();
        let named = named.map(|path| PathBuf::from(path.replace("HERE", here)));
        let variable = |name: &str| {
            let (_, value) = variables.iter().find(|(it, _)| *it == name)?;
            Some(value.replace("HERE", here).into())
        };
        chosen_by(place, named.as_deref(), &variable, None)
    }

    /// The interpreter that is chosen in `HERE/project/deep` by a zprobe in the environment `own`.
    fn chosen_by(
        place: &tempfile::TempDir,
        named: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        own: Option<&OwnEnvironment>,
    ) -> String {
        let here = place.path().to_str().unwrap();
        let dir = place.path().join("project/deep");
        choose(named, variable, &|| own, &dir).to_string().replace(here, "HERE")
    }

    const ALL: [&str; 8] = [
        "own/bin/python",
        "own/bin/python3",
        "venv/bin/python",
        "conda/bin/python3",
        "project/.venv/bin/python",
        "usr/python3",
        "usr/python",
        "alone",
    ];

    #[test]
    fn a_python_is_found_as_uv_finds_it() {
        let place = place(&ALL);
        let venv = ("VIRTUAL_ENV", "HERE/venv");
        let conda = ("CONDA_PREFIX", "HERE/conda");
        let base = ("CONDA_DEFAULT_ENV", "base");
        let path = ("PATH", "HERE/nothing:HERE/usr");
        let found = [
            (
                vec![venv, conda, path],
                "HERE/venv/bin/python (chosen because VIRTUAL_ENV=HERE/venv)",
            ),
            (vec![conda, path], "HERE/conda/bin/python3 (chosen because CONDA_PREFIX=HERE/conda)"),
            (
                vec![conda, base, path],
                "HERE/project/.venv/bin/python (chosen because of HERE/project/.venv)",
            ),
            (
                vec![("VIRTUAL_ENV", "HERE/gone"), ("CONDA_PREFIX", ""), path],
                "HERE/project/.venv/bin/python (chosen because of HERE/project/.venv)",
            ),
        ];
        for (variables, expected) in found {
            assert_eq!(chosen(&place, None, &variables), expected, "{variables:?}");
        }
        fs::remove_file(place.path().join("project/.venv/pyvenv.cfg")).unwrap();
        assert_eq!(chosen(&place, None, &[path]), "HERE/usr/python3 (the first python3 on PATH)");
        fs::remove_file(place.path().join("usr/python3")).unwrap();
        assert_eq!(chosen(&place, None, &[path]), "HERE/usr/python (the first python on PATH)");
        assert!(chosen(&place, None, &[]).starts_with("python3 (no virtual environment is active"));
    }

    #[test]
    fn the_environment_of_zprobe_counts_only_with_torch() {
        let place = place(&ALL);
        let here = place.path().to_str().unwrap();
        let python = place.path().join("own/bin/python");
        let chosen = |has_torch, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                let (_, value) = variables.iter().find(|(it, _)| *it == name)?;
                Some(value.replace("HERE", here).into())
            };
            let own = OwnEnvironment { python: python.clone(), has_torch };
            chosen_by(&place, None, &variable, Some(&own))
        };
        let path = ("PATH", "HERE/own/bin:HERE/usr");
        let active = [("VIRTUAL_ENV", "HERE/venv"), path];
        let own = "HERE/own/bin/python (chosen because zprobe and torch are installed there)";
        assert!(chosen(true, &active).starts_with("HERE/venv/bin/python"));
        assert_eq!(chosen(true, &[path]), own);
        assert!(chosen(false, &[path]).starts_with("HERE/project/.venv/bin/python"));
        fs::remove_file(place.path().join("project/.venv/pyvenv.cfg")).unwrap();
        assert_eq!(chosen(true, &[path]), own);
        assert_eq!(chosen(false, &[path]), "HERE/usr/python3 (the first python3 on PATH)");
        let nothing_else = chosen(false, &[("PATH", "HERE/own/bin")]);
        assert!(nothing_else.starts_with("HERE/own/bin/python (zprobe's own"), "{nothing_else}");
    }

    #[test]
    fn a_directory_stands_for_the_interpreter_in_it() {
        let place = place(&ALL);
        let why = " (named by --python, ZPROBE_PYTHON or the configuration file)";
        for (named, expected) in [
            ("HERE/venv", "HERE/venv/bin/python"),
            ("HERE/venv/bin", "HERE/venv/bin/python"),
            ("HERE/conda", "HERE/conda/bin/python3"),
            ("HERE/alone", "HERE/alone"),
            ("HERE/gone", "HERE/gone"),
            // For a directory without an interpreter, the path is where the interpreter should be.
            ("HERE/project", "HERE/project/bin/python"),
            ("python3.12", "python3.12"),
        ] {
            let variables = [("VIRTUAL_ENV", "HERE/venv")];
            assert_eq!(chosen(&place, Some(named), &variables), expected.to_owned() + why);
        }
    }
}
