//! The engines under test: a room for each, with everything that zprobe knows of it.
//!
//! A [`Room`] is a row of data, and [`of`] is the one place that goes by the name of an engine: who has
//! to do something with an engine asks its room. The facts that a specification follows from (defaults,
//! dtypes, where it divides, shapes that it cannot have) are the language that all speak and stand
//! before it, in [`crate::spec::Traits`]. Python of an adapter lies beside the Rust of its room;
//! [`crate::adapters`] has the parts that all adapters share, and starts them.

mod axes;
mod ddp;
mod deepspeed;
mod fsdp2;
mod native;
pub(crate) mod source;

pub use axes::{Axes, Choice};

use crate::spec::{Dtype, Engine, Point, RunSpec, named_enum};

/// Everything that is known of an engine beside what its specification means.
pub struct Room {
    /// Its name, for people.
    pub title: &'static str,
    /// Whose template a report of a bug in it follows.
    pub project: Project,
    /// The Python that its ranks need; none where they are zprobe's own program.
    pub python: Option<Python>,
    /// Why a rank may wait in a collective that it never spoke of; none if it cannot.
    pub unwatched: Option<&'static str>,
    /// The values of its settings that are worth trying.
    pub axes: fn() -> Axes,
    /// Who makes the buffer at a point, in the engine's own names: where to look in its code. None where
    /// that is not known. The name is that of the class that wraps the inner optimizer, if one does.
    pub function: fn(&RunSpec, Option<&str>, Point) -> Option<&'static str>,
    /// The dtype of the parameters that the model is made with.
    pub parameters_in: fn(&RunSpec) -> Dtype,
    /// The engine in the script of a bug report, with its settings; or why no script has it.
    pub standalone: fn(&RunSpec) -> Result<String, String>,
}

/// The Python that the ranks of a real engine need, and what they run in it.
pub struct Python {
    /// The package that it comes with, beside torch; none where torch has it.
    pub package: Option<Package>,
    /// Source of the facts with which the doctor tries it: a part of `doctor/facts.py`, with a fact that
    /// has the engine's name.
    pub trial: &'static str,
    /// What to do where torch is there and the trial fails.
    pub advice: &'static str,
    /// A dtype that not every machine can run it in.
    pub limit: Option<Limit>,
    /// Files of its adapter, a Python package, by name. `adapter.py` has the class `Engine`.
    pub adapter: &'static [(&'static str, &'static str)],
}

/// A package that an engine comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name for pip, which is that of its module.
    pub module: &'static str,
    /// Its name for people.
    pub title: &'static str,
}

/// Torch, which every real engine needs.
pub const TORCH: Package = Package { module: "torch", title: "torch" };

/// A dtype that an engine refuses on the CPU ranks of some machines. It is asked itself, before a run.
pub struct Limit {
    /// What is looked at, for people.
    pub subject: &'static str,
    /// The dtype.
    pub dtype: Dtype,
    /// The fact that says whether the installed engine takes it.
    pub taken: &'static str,
    /// The fact that says whether the CPU has it.
    pub on_cpu: &'static str,
    /// Why the engine refuses it where the CPU does not have it.
    pub without_cpu: &'static str,
    /// What to do where the CPU does not have it.
    pub other_cpu: &'static str,
    /// What to do where the engine refuses it though the CPU has it.
    pub other_release: &'static str,
}

named_enum! {
    /// The project whose template a report of a bug follows.
    pub enum Project {
        /// DeepSpeed's.
        DeepSpeed = "deepspeed",
        /// PyTorch's.
        PyTorch = "pytorch",
        /// Nobody's in particular.
        Plain = "plain",
    }
}

/// The room of an engine.
pub fn of(engine: Engine) -> &'static Room {
    match engine {
        Engine::Native => &native::ROOM,
        Engine::DeepSpeed => &deepspeed::ROOM,
        Engine::Ddp => &ddp::ROOM,
        Engine::Fsdp2 => &fsdp2::ROOM,
    }
}

/// Every engine that ranks in Python run, with what they need; those that come with torch first, which
/// are quick to try.
pub fn real() -> impl Iterator<Item = (Engine, &'static Python)> {
    let all = Engine::ALL.iter().filter_map(|&engine| Some((engine, of(engine).python.as_ref()?)));
    let (with_torch, others): (Vec<_>, Vec<_>) =
        all.partition(|(_, python)| python.package.is_none());
    with_torch.into_iter().chain(others)
}

/// The packages that engines need, each once, torch first.
pub fn packages() -> impl Iterator<Item = Package> {
    std::iter::once(TORCH).chain(real().filter_map(|(_, python)| python.package))
}

impl Room {
    /// Whether it is a real engine: one of a release, and not zprobe's own.
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
