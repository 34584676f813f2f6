//! Checks of the interpreter and of the machine's resources for ranks.

use super::checks::{INSTALL_TORCH, no_answer};
use super::cuda::cuda;
use super::{CheckState, DoctorCheck, InterpreterError, MachineFacts, PythonAttempt, PythonFacts};
use zprobe_model::spec::DEFAULT_WORLD_SIZE;

/// Number of bytes in a mebibyte.
const MIB: u64 = 1 << 20;

/// Memory that a rank with torch takes, in bytes: 134 MB measured, and as much again for its
/// gradients.
const RANK_MEMORY: u64 = 300 * MIB;

/// Number of open files that a run needs: channels and logs of eight ranks, and the files that Python opens itself.
const OPEN_FILES: u64 = 256;

/// Shared memory that NCCL asks for, in bytes; containers give 64 MiB by default.
const SHARED_MEMORY: u64 = 128 * MIB;

/// The checks of the interpreter and of the machine's resources.
pub fn surroundings(
    machine: &MachineFacts,
    python: &Result<PythonFacts, InterpreterError>,
) -> Vec<DoctorCheck> {
    let mut checks = match python {
        Ok(python) => interpreter(python),
        Err(error) => vec![no_answer("python", error)],
    };
    checks.push(driver(machine, python.as_ref().ok()));
    checks.extend(cuda(machine));
    checks.push(match machine.cores {
        Some(cores) if cores >= DEFAULT_WORLD_SIZE => DoctorCheck::ok("cores", cores.to_string()),
        Some(cores) => DoctorCheck::not(
            "cores",
            CheckState::Broken,
            format!("{cores} for {DEFAULT_WORLD_SIZE} ranks"),
            "runs will be slow; raise --timeout if ranks are reported as hung",
        ),
        None => unknown("cores"),
    });
    checks.push(enough(
        "memory",
        machine.memory,
        RANK_MEMORY * DEFAULT_WORLD_SIZE as u64,
        size,
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
        size,
        "start the container with --shm-size=1g or --ipc=host, or NCCL fails",
    ));
    checks.push(match &machine.uv {
        Some(path) => DoctorCheck::ok("uv", path.display().to_string()),
        None => DoctorCheck::not(
            "uv",
            CheckState::Missing,
            "not on PATH; `zprobe zoo` makes environments with venv and pip instead",
            "`pip install uv`: uv is faster, and fetches interpreters",
        ),
    });
    checks
}

fn interpreter(python: &PythonFacts) -> Vec<DoctorCheck> {
    vec![
        DoctorCheck::ok("python", format!("{} {}", python.version, python.executable)),
        DoctorCheck::tried("torch", &python.torch, String::clone, INSTALL_TORCH),
        match &python.backends {
            PythonAttempt::Value(backends) if backends.is_empty() => DoctorCheck::not(
                "backends",
                CheckState::Missing,
                "torch was built without torch.distributed",
                "install a torch with torch.distributed, for example a wheel for Linux from PyPI",
            ),
            backends => DoctorCheck::tried(
                "backends",
                backends,
                |backends| backends.join(", "),
                INSTALL_TORCH,
            ),
        },
    ]
}

/// The check of the GPUs, as the driver and torch see them.
fn driver(machine: &MachineFacts, python: Option<&PythonFacts>) -> DoctorCheck {
    const SUBJECT: &str = "gpus";
    let usable = python.and_then(|python| python.gpus.value()).map(Vec::len);
    match &machine.driver {
        Err(problem) => DoctorCheck::not(
            SUBJECT,
            CheckState::Broken,
            problem.as_str(),
            "the driver is installed but does not answer; ranks can run on the CPU",
        ),
        Ok(names) if names.is_empty() => DoctorCheck::not(
            SUBJECT,
            CheckState::Missing,
            "nvidia-smi is not on PATH, or lists no GPU",
            "ranks run on the CPU; nothing to do unless you expect a GPU here",
        ),
        Ok(names) if usable.is_some_and(|usable| usable < names.len()) => DoctorCheck::not(
            SUBJECT,
            CheckState::Broken,
            format!("torch cannot use all of these GPUs: {}", names.join(", ")),
            "install a torch whose CUDA version fits the driver, and check CUDA_VISIBLE_DEVICES",
        ),
        Ok(names) => DoctorCheck::ok(SUBJECT, names.join(", ")),
    }
}

/// The check that compares a quantity with the least that is needed.
fn enough(
    subject: &'static str,
    have: Option<u64>,
    need: u64,
    text: impl Fn(u64) -> String,
    advice: &'static str,
) -> DoctorCheck {
    match have {
        None => unknown(subject),
        Some(have) if have >= need => DoctorCheck::ok(subject, text(have)),
        Some(have) => {
            let detail = format!("{}, less than {}", text(have), text(need));
            DoctorCheck::not(subject, CheckState::Broken, detail, advice)
        }
    }
}

/// A size in words: `64 MiB`, or `22.7 GiB`.
fn size(bytes: u64) -> String {
    let mebibytes = bytes / MIB;
    if mebibytes < 1024 {
        format!("{mebibytes} MiB")
    } else {
        format!("{}.{} GiB", mebibytes / 1024, mebibytes % 1024 * 10 / 1024)
    }
}

fn unknown(subject: &'static str) -> DoctorCheck {
    DoctorCheck::not(
        subject,
        CheckState::Missing,
        "the system does not report this value",
        "nothing to do if runs work",
    )
}
