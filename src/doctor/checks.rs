//! Facts become lines: what is there, what is missing or broken, and what to do about it.

use super::python::NOT_TRIED;
use super::{Attempt, Machine, NoAnswer, Python};
use crate::spec::{DEFAULT_WORLD_SIZE, Engine, named_enum};

/// Bytes in a gibibyte.
const GIB: f64 = (1u64 << 30) as f64;

/// Memory that a rank with torch takes: 134 MB measured, and as much again for its gradients.
const RANK_MEMORY: u64 = 300 << 20;

/// Open files that a run needs: channels and logs of eight ranks, and what Python opens itself.
const OPEN_FILES: u64 = 256;

/// Shared memory that NCCL asks for in containers, which give 64 MiB by default.
const SHARED_MEMORY: u64 = 128 << 20;

named_enum! {
    /// What was found.
    pub enum State {
        /// It is there and works.
        Ok = "ok",
        /// It is not there.
        Missing = "missing",
        /// It is there and does not work.
        Broken = "broken",
    }
}

/// One line of the doctor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub state: State,
    /// More about it: a version, or why not.
    pub detail: String,
    /// What to do; none where nothing has to be done.
    pub advice: Option<&'static str>,
}

impl Check {
    fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, state: State::Ok, detail: detail.into(), advice: None }
    }

    fn not(
        subject: &'static str,
        state: State,
        detail: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self { subject, state, detail: detail.into(), advice: Some(advice) }
    }

    /// For something that was tried in Python: it is missing if it is a module that is not there.
    fn tried<T>(
        subject: &'static str,
        attempt: &Attempt<T>,
        detail: impl Fn(&T) -> String,
        advice: &'static str,
    ) -> Self {
        match attempt {
            Attempt::Value(value) => Self::ok(subject, detail(value)),
            Attempt::Problem(problem) => {
                let absent = problem.starts_with("ModuleNotFoundError") || problem == NOT_TRIED;
                let state = if absent { State::Missing } else { State::Broken };
                Self::not(subject, state, problem.as_str(), advice)
            }
        }
    }
}

/// Which engines can run: a line for each, in the order of [`Engine::ALL`].
pub fn engines(machine: &Machine, python: &Result<Python, NoAnswer>) -> Vec<Check> {
    Engine::ALL
        .iter()
        .map(|engine| {
            let name = engine.name();
            if *engine == Engine::Native {
                return match &machine.native {
                    Ok(path) => Check::ok(name, path.display().to_string()),
                    Err(path) => Check::not(
                        name,
                        State::Missing,
                        format!("{} does not exist", path.display()),
                        "build it with `cargo xtask build`",
                    ),
                };
            }
            let python = match python {
                Ok(python) => python,
                Err(error) => return no_answer(name, error),
            };
            let torch = |version: &String| format!("torch {version}");
            match engine {
                Engine::Native | Engine::DeepSpeed => Check::tried(
                    name,
                    &python.deepspeed,
                    |version| format!("deepspeed {version}"),
                    "install DeepSpeed beside torch (`DS_BUILD_OPS=0 pip install \
                     --no-build-isolation deepspeed`), or name another interpreter with --python",
                ),
                Engine::Ddp => Check::tried(
                    name,
                    &python.ddp,
                    |_| python.torch.value().map(torch).unwrap_or_default(),
                    "install torch (`pip install torch`), or name another interpreter with --python",
                ),
                Engine::Fsdp2 => Check::tried(
                    name,
                    &python.fsdp2,
                    |_| python.torch.value().map(torch).unwrap_or_default(),
                    "fully_shard on the CPU works with torch 2.11, and not with 2.6 or older; \
                     upgrade torch, or name another interpreter with --python",
                ),
            }
        })
        .collect()
}

/// The Python and what the machine has.
pub fn surroundings(machine: &Machine, python: &Result<Python, NoAnswer>) -> Vec<Check> {
    let mut checks = match python {
        Ok(python) => interpreter(python),
        Err(error) => vec![no_answer("python", error)],
    };
    checks.push(driver(machine, python.as_ref().ok()));
    checks.push(match machine.cores {
        Some(cores) if cores >= DEFAULT_WORLD_SIZE => Check::ok("cores", cores.to_string()),
        Some(cores) => Check::not(
            "cores",
            State::Broken,
            format!("{cores} for {DEFAULT_WORLD_SIZE} ranks"),
            "runs are slow; raise --timeout if ranks count as hung",
        ),
        None => unknown("cores"),
    });
    checks.push(enough(
        "memory",
        machine.memory,
        RANK_MEMORY * DEFAULT_WORLD_SIZE as u64,
        gibibytes,
        "free memory, or run fewer ranks with --nproc-per-node",
    ));
    checks.push(enough(
        "open files",
        machine.open_files,
        OPEN_FILES,
        |files| files.to_string(),
        "raise the limit of the shell with `ulimit -n 1024`",
    ));
    checks.push(enough(
        "/dev/shm",
        machine.shared_memory,
        SHARED_MEMORY,
        gibibytes,
        "start the container with --shm-size=1g or --ipc=host, or NCCL fails",
    ));
    checks.push(match &machine.uv {
        Some(path) => Check::ok("uv", path.display().to_string()),
        None => Check::not(
            "uv",
            State::Missing,
            "not on PATH; `zprobe zoo` makes environments with venv and pip instead",
            "`pip install uv`: quicker, and it fetches interpreters",
        ),
    });
    checks
}

fn interpreter(python: &Python) -> Vec<Check> {
    vec![
        Check::ok("python", format!("{} {}", python.version, python.executable)),
        Check::tried("torch", &python.torch, String::clone, "`pip install torch`"),
        match &python.backends {
            Attempt::Value(backends) if backends.is_empty() => Check::not(
                "backends",
                State::Missing,
                "torch was built without torch.distributed",
                "install a torch with it; those on PyPI for Linux have it",
            ),
            backends => Check::tried(
                "backends",
                backends,
                |backends| backends.join(", "),
                "`pip install torch`",
            ),
        },
    ]
}

/// GPUs, as the driver and as torch see them.
fn driver(machine: &Machine, python: Option<&Python>) -> Check {
    const SUBJECT: &str = "gpus";
    let usable = python.and_then(|python| python.gpus.value()).map_or(0, Vec::len);
    match &machine.driver {
        Err(problem) => Check::not(
            SUBJECT,
            State::Broken,
            problem.as_str(),
            "the driver is installed and does not answer; ranks can run on the CPU",
        ),
        Ok(names) if names.is_empty() => Check::not(
            SUBJECT,
            State::Missing,
            "no nvidia-smi, or it lists none",
            "ranks run on the CPU; nothing to do unless you expect a GPU here",
        ),
        Ok(names) if usable < names.len() && python.is_some() => Check::not(
            SUBJECT,
            State::Broken,
            format!("{} in the machine, {usable} usable by this torch", names.len()),
            "install a torch for CUDA that fits the driver, and look at CUDA_VISIBLE_DEVICES",
        ),
        Ok(names) => Check::ok(SUBJECT, names.join(", ")),
    }
}

/// A quantity against what is needed of it.
fn enough(
    subject: &'static str,
    have: Option<u64>,
    need: u64,
    text: impl Fn(u64) -> String,
    advice: &'static str,
) -> Check {
    match have {
        None => unknown(subject),
        Some(have) if have >= need => Check::ok(subject, text(have)),
        Some(have) => {
            let detail = format!("{}, less than {}", text(have), text(need));
            Check::not(subject, State::Broken, detail, advice)
        }
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB)
}

fn unknown(subject: &'static str) -> Check {
    Check::not(subject, State::Missing, "the system does not say", "nothing, if runs work")
}

fn no_answer(subject: &'static str, error: &NoAnswer) -> Check {
    let state =
        if matches!(error, NoAnswer::Start { .. }) { State::Missing } else { State::Broken };
    Check::not(subject, state, error.to_string(), "name a working interpreter with --python")
}
