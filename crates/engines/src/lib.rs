//! The engines under test. Each engine has a module with its [`EngineFacts`], which zprobe needs to run the engine.
//!
//! [`EngineFacts`] are data, and [`of`] is the only place that branches on the engine: all other code reads the
//! engine's facts. The facts on which a specification depends (defaults, dtypes, where the engine divides, unsupported
//! shapes) are in [`zprobe_model::spec::Traits`], which does not depend on this module. The engine's training script
//! and the code that observes the engine are Python files in the directory of the engine; the module `adapters` of the
//! crate `zprobe-launch` holds the Python that all engines share, and starts the ranks.

mod axes;
mod ddp;
mod deepspeed;
mod fsdp1;
mod fsdp2;
mod native;
mod pipeline;
mod script;
pub mod source;

pub use axes::{Axes, AxisChoice};
pub use native::INSTALL as INSTALL_NATIVE;

use std::collections::BTreeMap;

use zprobe_model::spec::{Dtype, Engine, Point, RunSpec, named_enum};

/// All facts about an engine, except for the facts on which the meaning of a specification depends.
pub struct EngineFacts {
    /// The name of the engine, for people.
    pub title: &'static str,
    /// The project whose issue template is used to report a bug in the engine.
    pub project: Project,
    /// The Python packages and code that the engine's ranks need; `None` for zprobe's own engine and for a user's
    /// script.
    pub python: Option<PythonSource>,
    /// The reason why a rank may wait in a collective that it did not announce; `None` if all collectives are
    /// announced.
    pub unwatched: Option<&'static str>,
    /// The values of the engine's settings that are worth trying.
    pub axes: fn() -> Axes,
    /// The function or file in the engine's code that produces the buffer at a point; `None` if it is unknown. The
    /// text argument is the class that wraps the inner optimizer, if there is one.
    pub function: fn(&RunSpec, Option<&str>, Point) -> Option<&'static str>,
    /// The dtype of the model's parameters before the engine gets the model.
    pub parameters_in: fn(&RunSpec) -> Dtype,
    /// The engine's part of the script in a bug report, with the engine's settings. An error is the reason why
    /// there can be no script.
    pub repro: fn(&RunSpec) -> Result<EngineScript, String>,
}

/// The engine's part of the script in a bug report.
pub struct EngineScript {
    /// The text of the script. Lines that end in `#: NAME` are placeholders for code that depends on the run.
    pub text: String,
    /// The constants that only this engine's script has, as Python source.
    pub constants: String,
    /// The name of the function that the script calls for a forward.
    pub forward: &'static str,
    /// Makes the script's lines before a forward, which tell the engine whether the backward is the last of a step.
    /// The arguments are the run, the Python condition for the last backward, and whether a microbatch has several
    /// backwards. If the last line ends in a colon, it opens a block.
    pub accumulation: fn(&RunSpec, &str, bool) -> Vec<String>,
    /// The line that runs the backward of `loss`.
    pub backward: String,
}

/// The Python packages that the ranks of a real engine need, and the code that the ranks run.
pub struct PythonSource {
    /// The package that contains the engine; `None` if the engine is part of torch.
    pub package: Option<EnginePackage>,
    /// The Python code with which `zprobe doctor` tries the engine: a part of `doctor/facts.py` that sets a fact named
    /// after the engine. `None` if the trial of DDP is enough.
    pub trial: Option<&'static str>,
    /// The advice if torch is installed and the trial fails.
    pub advice: &'static str,
    /// The features that only some releases of the engine have; `None` if every release has all features.
    pub features: Option<ReleaseFeatures>,
    /// The files of the engine's Python package, as name and text. `script.py` has the function `train`, which
    /// gives the model of a `Run` to the engine and trains the model as a user would.
    pub script: &'static [(&'static str, &'static str)],
    /// The files of the same package that observe the engine in any script, as name and text. `eyes.py` has the class
    /// `Eyes`; an engine without `eyes.py` is observed with the class for all engines, `BaseEyes`.
    pub eyes: &'static [(&'static str, &'static str)],
}

/// A Python package that contains an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePackage {
    /// The name of the package for pip, which is also the name of its module.
    pub module: &'static str,
    /// The name of the package for people.
    pub title: &'static str,
}

/// The package torch, which every real engine needs.
pub const TORCH: EnginePackage = EnginePackage { module: "torch", title: "torch" };

/// The features that only some releases of an engine have. zprobe asks the installed engine before a run that needs
/// such a feature.
pub struct ReleaseFeatures {
    /// The name of the fact that lists the features of the installed engine.
    pub fact: &'static str,
    /// The features that a run needs, each with the flag that asks for it.
    pub needed: fn(&RunSpec) -> Vec<(String, String)>,
}

named_enum! {
    /// The project whose issue template a bug report follows.
    pub enum Project {
        /// The DeepSpeed project.
        DeepSpeed = "deepspeed",
        /// The PyTorch project.
        PyTorch = "pytorch",
        /// The transformers project.
        Transformers = "transformers",
        /// The accelerate project.
        Accelerate = "accelerate",
        /// The PyTorch Lightning project.
        Lightning = "lightning",
        /// No particular project.
        Plain = "plain",
    }
}

/// The issue tracker of a project on GitHub.
#[derive(Clone, Copy, Debug)]
pub struct Tracker {
    /// The repository, in the form that `gh` takes.
    pub repository: &'static str,
    /// The URL of the page for a new issue, with the project's template for bugs.
    pub page: &'static str,
    /// The fields of that page into which the text of `report.md` goes, as words for people.
    pub body: &'static str,
    /// The name of the diagnostic output that the template asks for, which zprobe collects from a Python interpreter.
    pub wants: &'static str,
}

impl Project {
    /// The issue tracker of the project; `None` for no particular project.
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
                body: "report.md of the zip in the form's two fields (everything from the heading \"Versions\" on \
                       in the second)",
                wants: "collect_env",
            }),
            Project::Transformers => Some(Tracker {
                repository: "huggingface/transformers",
                page: "https://github.com/huggingface/transformers/issues/new?template=bug-report.yml",
                body: "each part of report.md of the zip in the form's field of the same name",
                wants: "transformers env",
            }),
            Project::Accelerate => Some(Tracker {
                repository: "huggingface/accelerate",
                page: "https://github.com/huggingface/accelerate/issues/new?template=bug-report.yml",
                body: "each part of report.md of the zip in the form's field of the same name",
                wants: "accelerate env",
            }),
            Project::Lightning => Some(Tracker {
                repository: "Lightning-AI/pytorch-lightning",
                page: "https://github.com/Lightning-AI/pytorch-lightning/issues/new?template=1_bug_report.yaml",
                body: "each part of report.md of the zip in the form's field of the same name",
                wants: "collect_env",
            }),
            Project::Plain => None,
        }
    }

    /// The project of the trainer that a script imports, from the `versions` of its packages; `None` if the script has
    /// its own training loop. Lightning brings its own loop, and transformers' Trainer is built on accelerate.
    pub fn of_trainer(versions: &BTreeMap<String, String>) -> Option<Self> {
        let trainers = [
            ("lightning", Project::Lightning),
            ("pytorch-lightning", Project::Lightning),
            ("transformers", Project::Transformers),
            ("accelerate", Project::Accelerate),
        ];
        trainers.into_iter().find(|(name, _)| versions.contains_key(*name)).map(|(_, it)| it)
    }
}

/// The facts about an engine that is part of every torch release and has no settings of its own. Only the title and the
/// script are missing.
const OF_TORCH: EngineFacts = EngineFacts {
    title: "",
    project: Project::PyTorch,
    python: Some(PYTHON_OF_TORCH),
    unwatched: Some("zprobe does not watch every collective of this engine"),
    axes: axes::plain,
    function: |_, _, _| None,
    parameters_in: |spec| spec.dtype,
    repro: |_| {
        Err("zprobe has no such script for this engine; send the run directory's rank-program with the report"
            .to_owned())
    },
};

/// The Python packages and code of an engine that is part of every torch release. Only the script is missing.
const PYTHON_OF_TORCH: PythonSource = PythonSource {
    package: None,
    trial: None,
    advice: "install another torch, or name another interpreter with --python",
    features: None,
    script: &[],
    eyes: &[],
};

static ZERO_REDUNDANCY: EngineFacts = EngineFacts {
    title: "ZeroRedundancyOptimizer",
    python: Some(PythonSource {
        script: &[("script.py", include_str!("zero_redundancy/script.py"))],
        ..PYTHON_OF_TORCH
    }),
    ..OF_TORCH
};

/// Returns the facts about the given engine.
pub fn of(engine: Engine) -> &'static EngineFacts {
    match engine {
        Engine::Native => &native::ROOM,
        Engine::DeepSpeed => &deepspeed::ROOM,
        Engine::Ddp => &ddp::ROOM,
        Engine::Fsdp1 => &fsdp1::ROOM,
        Engine::Fsdp2 => &fsdp2::ROOM,
        Engine::Pipeline => &pipeline::ROOM,
        Engine::ZeroRedundancy => &ZERO_REDUNDANCY,
        Engine::Script => &script::ROOM,
    }
}

/// The engine of a run that names none, among the engines of a Python environment: DeepSpeed, or else DDP. `has` is true
/// for a module that the environment has.
pub fn preferred(has: impl Fn(&str) -> bool) -> Option<Engine> {
    let is_there = |engine: &Engine| {
        let needs = of(*engine).python.as_ref();
        needs.is_some_and(|needs| needs.packages().all(|package| has(package.module)))
    };
    [Engine::DeepSpeed, Engine::Ddp].into_iter().find(is_there)
}

/// The engine that reads a DeepSpeed configuration file in a training script.
pub fn of_deepspeed_file() -> Engine {
    Engine::DeepSpeed
}

/// All engines whose ranks run in Python, with the packages and the code that the ranks need. Engines that are part of
/// torch come first, because they are quick to try.
pub fn real() -> impl Iterator<Item = (Engine, &'static PythonSource)> {
    let all =
        Engine::CHOICES.iter().filter_map(|&engine| Some((engine, of(engine).python.as_ref()?)));
    let (with_torch, others): (Vec<_>, Vec<_>) =
        all.partition(|(_, python)| python.package.is_none());
    with_torch.into_iter().chain(others)
}

/// The packages that the engines need, each once, torch first.
pub fn packages() -> impl Iterator<Item = EnginePackage> {
    std::iter::once(TORCH).chain(real().filter_map(|(_, python)| python.package))
}

impl PythonSource {
    /// The name of the fact that says whether `engine` works. `self` holds the packages and the code of this engine.
    pub fn tried_as(&self, engine: Engine) -> &'static str {
        if self.trial.is_some() { engine.name() } else { Engine::Ddp.name() }
    }
}

impl EngineFacts {
    /// True for a released engine; false for zprobe's own engine and for a user's script.
    pub fn is_real(&self) -> bool {
        self.python.is_some()
    }
}

impl PythonSource {
    /// The packages that must be installed for the engine, torch first.
    pub fn packages(&self) -> impl Iterator<Item = EnginePackage> {
        std::iter::once(TORCH).chain(self.package)
    }
}
