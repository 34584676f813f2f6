//! The engines under test, with a [`Room`] for each that holds all that zprobe knows of it.
//!
//! A [`Room`] is a row of data, and [`of`] is the only place that branches on the engine: code that
//! deals with an engine asks its room. The facts on which a specification depends (defaults,
//! dtypes, the place of the division, shapes that the engine cannot have) are in
//! [`zprobe_model::spec::Traits`], which does not depend on this module. The engine's script and its eyes, in
//! Python, lie beside the Rust of its room; the module `adapters` of the crate `zprobe-launch` has the parts that all scripts share,
//! and starts them.

mod axes;
mod ddp;
mod deepspeed;
mod fsdp2;
mod native;
mod pipeline;
mod script;
pub mod source;

pub use axes::{Axes, Choice};
pub use native::INSTALL as INSTALL_NATIVE;

use zprobe_model::spec::{Dtype, Engine, Point, RunSpec, named_enum};

/// All facts about an engine except those on which the meaning of a specification depends.
pub struct Room {
    /// Name of the engine, for people.
    pub title: &'static str,
    /// Project whose issue template a report of a bug in the engine follows.
    pub project: Project,
    /// Python that the engine's ranks need; none where the ranks are zprobe's own program.
    pub python: Option<Python>,
    /// Reason why a rank may wait in a collective that it did not announce; none if all are
    /// announced.
    pub unwatched: Option<&'static str>,
    /// The values of the engine's settings that are worth trying.
    pub axes: fn() -> Axes,
    /// The function or file in the engine's code that makes the buffer at a point; none where it is
    /// not known. The text argument is the class that wraps the inner optimizer, if there is one.
    pub function: fn(&RunSpec, Option<&str>, Point) -> Option<&'static str>,
    /// The dtype of the model's parameters before the engine gets them.
    pub parameters_in: fn(&RunSpec) -> Dtype,
    /// The engine in the script of a bug report, with its settings; or the reason why there can be no
    /// script.
    pub repro: fn(&RunSpec) -> Result<Repro, String>,
}

/// An engine in the script of a bug report.
pub struct Repro {
    /// Text of the script. Lines that end in `#: NAME` make room for what depends on the run.
    pub text: String,
    /// Constants of the script that only this engine has.
    pub constants: String,
    /// The function that is called for a forward.
    pub forward: &'static str,
    /// Lines before a forward, which tell the engine under a condition that the backward is the last of a step, and
    /// whether a microbatch has several. A last line with a colon opens a block.
    pub accumulation: fn(&RunSpec, &str, bool) -> Vec<String>,
    /// The line that sends `loss` backward.
    pub backward: String,
}

/// The Python packages that the ranks of a real engine need, and the code that they run.
pub struct Python {
    /// The package that has the engine; none where it is part of torch.
    pub package: Option<Package>,
    /// Source of the facts with which the doctor tries the engine: a part of `doctor/facts.py`,
    /// with a fact that has the engine's name. None where the trial of DDP will do.
    pub trial: Option<&'static str>,
    /// Advice where torch is there and the trial fails.
    pub advice: &'static str,
    /// A dtype in which the engine does not run on every machine.
    pub limit: Option<Limit>,
    /// Features that only some releases of the engine have; none where all are in every release.
    pub features: Option<Features>,
    /// Files of the engine's Python package by name: `script.py` has the function `train`, which hands
    /// the model of a `Run` to the engine and trains it as a user would.
    pub script: &'static [(&'static str, &'static str)],
    /// Files of the same package that need no script: what can be seen of the engine, whoever drives it. `eyes.py` has
    /// the class `Eyes`; an engine without it is seen with those of any engine.
    pub eyes: &'static [(&'static str, &'static str)],
}

/// A Python package that has an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Name for pip, which is that of the module.
    pub module: &'static str,
    /// Name for people.
    pub title: &'static str,
}

/// Torch, which every real engine needs.
pub const TORCH: Package = Package { module: "torch", title: "torch" };

/// A dtype that an engine refuses on the CPU ranks of some machines. The engine is asked before a
/// run.
pub struct Limit {
    /// Subject of the check, for people.
    pub subject: &'static str,
    /// The dtype.
    pub dtype: Dtype,
    /// Name of the fact that says whether the installed engine accepts the dtype.
    pub taken: &'static str,
    /// Name of the fact that says whether the CPU has the dtype.
    pub on_cpu: &'static str,
    /// Reason for the engine's refusal where the CPU does not have the dtype.
    pub without_cpu: &'static str,
    /// Advice where the CPU does not have the dtype.
    pub other_cpu: &'static str,
    /// Advice where the engine refuses the dtype though the CPU has it.
    pub other_release: &'static str,
}

/// Features that only some releases of an engine have. The engine is asked before a run that needs one.
pub struct Features {
    /// Name of the fact that lists the features of the installed engine.
    pub fact: &'static str,
    /// The features that a run needs, each with the flag that asks for it.
    pub needed: fn(&RunSpec) -> Vec<(String, String)>,
}

named_enum! {
    /// The project whose template a report of a bug follows.
    pub enum Project {
        /// DeepSpeed.
        DeepSpeed = "deepspeed",
        /// PyTorch.
        PyTorch = "pytorch",
        /// No project in particular.
        Plain = "plain",
    }
}

/// The place on GitHub for issues of a project.
#[derive(Clone, Copy, Debug)]
pub struct Tracker {
    /// The repository, as `gh` names it.
    pub repository: &'static str,
    /// The page of a new issue, with the project's template for bugs.
    pub page: &'static str,
    /// Place of `report.md` on that page, in words.
    pub body: &'static str,
    /// Name of the output that the template asks for, which zprobe collects from an interpreter.
    pub wants: &'static str,
}

impl Project {
    /// The place for issues of the project; none where there is no project.
    pub fn tracker(self) -> Option<Tracker> {
        match self {
            Project::DeepSpeed => Some(Tracker {
                repository: "deepspeedai/DeepSpeed",
                page: "https://github.com/deepspeedai/DeepSpeed/issues/new?template=training_bug_report.md",
                body: "report.md of the zip as its text",
                wants: "ds_report",
            }),
            Project::PyTorch => Some(Tracker {
                repository: "pytorch/pytorch",
                page: "https://github.com/pytorch/pytorch/issues/new?template=bug-report.yml",
                body: "report.md of the zip in its two fields, from the heading \"Versions\" on in the second",
                wants: "collect_env",
            }),
            Project::Plain => None,
        }
    }
}

/// The room of an engine that every torch has and that has no settings of its own: with its title and its
/// script it is complete.
const OF_TORCH: Room = Room {
    title: "",
    project: Project::PyTorch,
    python: Some(PYTHON_OF_TORCH),
    unwatched: Some("not every collective of this engine is watched"),
    axes: axes::plain,
    function: |_, _, _| None,
    parameters_in: |spec| spec.dtype,
    repro: |_| {
        Err("there is none for this engine; send the run directory's rank-program with the report"
            .to_owned())
    },
};

/// The Python of an engine that every torch has, without its script.
const PYTHON_OF_TORCH: Python = Python {
    package: None,
    trial: None,
    advice: "install another torch, or name another interpreter with --python",
    limit: None,
    features: None,
    script: &[],
    eyes: &[],
};

static ZERO_REDUNDANCY: Room = Room {
    title: "ZeroRedundancyOptimizer",
    python: Some(Python {
        script: &[("script.py", include_str!("zero_redundancy/script.py"))],
        ..PYTHON_OF_TORCH
    }),
    ..OF_TORCH
};

/// The room of an engine.
pub fn of(engine: Engine) -> &'static Room {
    match engine {
        Engine::Native => &native::ROOM,
        Engine::DeepSpeed => &deepspeed::ROOM,
        Engine::Ddp => &ddp::ROOM,
        Engine::Fsdp2 => &fsdp2::ROOM,
        Engine::Pipeline => &pipeline::ROOM,
        Engine::ZeroRedundancy => &ZERO_REDUNDANCY,
        Engine::Script => &script::ROOM,
    }
}

/// All engines whose ranks run in Python, with the Python that they need; engines that are part of
/// torch come first, because they are quick to try.
pub fn real() -> impl Iterator<Item = (Engine, &'static Python)> {
    let all =
        Engine::CHOICES.iter().filter_map(|&engine| Some((engine, of(engine).python.as_ref()?)));
    let (with_torch, others): (Vec<_>, Vec<_>) =
        all.partition(|(_, python)| python.package.is_none());
    with_torch.into_iter().chain(others)
}

/// The packages that engines need, each once, torch first.
pub fn packages() -> impl Iterator<Item = Package> {
    std::iter::once(TORCH).chain(real().filter_map(|(_, python)| python.package))
}

impl Python {
    /// Name of the fact that says whether `engine`, whose Python this is, works.
    pub fn tried_as(&self, engine: Engine) -> &'static str {
        if self.trial.is_some() { engine.name() } else { Engine::Ddp.name() }
    }
}

impl Room {
    /// True if the engine is a real one: a released engine, and not zprobe's own.
    pub fn is_real(&self) -> bool {
        self.python.is_some()
    }
}

impl Python {
    /// The packages that have to be installed, torch first.
    pub fn packages(&self) -> impl Iterator<Item = Package> {
        std::iter::once(TORCH).chain(self.package)
    }
}
