//! The job launchers under which the tests run zprobe: Slurm and Open MPI. torchrun comes with torch.

use anyhow::{Result, ensure};

use crate::host::{Host, apt};

/// The programs that the launcher tests start.
const PROGRAMS: [&str; 6] = ["srun", "slurmctld", "slurmd", "munged", "mpirun", "ip"];

/// The Debian packages that contain [`PROGRAMS`].
const PACKAGES: [&str; 4] = ["slurm-wlm", "munge", "openmpi-bin", "iproute2"];

/// Makes the launchers ready: uses the installed ones, or installs them with apt-get as root.
pub fn prepare(host: &Host) -> Result<()> {
    let missing = || PROGRAMS.into_iter().filter(|program| !host.has(program)).collect::<Vec<_>>();
    if missing().is_empty() {
        return Ok(());
    }
    apt::install(host, &PACKAGES)?;
    let missing = missing();
    ensure!(missing.is_empty(), "apt-get installed no program {}", missing.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn launchers_that_are_there_are_not_installed_again() {
        let all =
            PROGRAMS.into_iter().fold(FakeHost::new(), |host, name| host.with(name, "exit 0"));
        prepare(&all).unwrap();
        let none = FakeHost::new().with("apt-get", "exit 0").with("id", "echo 0");
        let error = prepare(&none).unwrap_err().to_string();
        assert!(error.starts_with("apt-get installed no program srun, slurmctld"), "{error}");
    }
}
