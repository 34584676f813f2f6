//! Free space on the disk.

use std::path::Path;

use anyhow::{Result, bail};

use crate::host::Host;

/// The disk space that a provisioning takes at its peak, in MiB: pip holds the wheels twice for a moment.
const PEAK: u64 = 1200;

/// Checks that there is enough disk space below `dir`.
pub fn check(host: &Host, dir: &Path) -> Result<()> {
    // If `df` cannot tell the space, the first write that meets a full disk reports it.
    let Some(free) = free(host, dir) else { return Ok(()) };
    if free < PEAK {
        bail!(
            "there is too little room for libtorch in {}: {free} MiB are free and {PEAK} are \
             needed (half of them for good)\nmake room, or set CARGO_TARGET_DIR to a larger disk",
            dir.display()
        );
    }
    Ok(())
}

/// The free MiB below `dir`, by POSIX `df`; `None` if `df` fails.
fn free(host: &Host, dir: &Path) -> Option<u64> {
    let output = host.command("df").args(["-P", "-k"]).arg(dir).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    const HEADER: &str = "Filesystem 1024-blocks Used Available Capacity Mounted on";

    fn host(available: &str) -> FakeHost {
        FakeHost::new().with("df", &format!("echo '{HEADER}\n/dev/a 9 1 {available} 1% /'"))
    }

    #[test]
    fn a_full_disk_is_said() {
        let error = check(&host("102400"), Path::new("/somewhere")).unwrap_err().to_string();
        assert!(error.contains("in /somewhere: 100 MiB are free"), "{error}");
    }

    #[test]
    fn a_roomy_disk_passes() {
        check(&host("99999999"), Path::new("/")).unwrap();
    }

    #[test]
    fn an_unknown_disk_passes() {
        check(&host("-"), Path::new("/")).unwrap();
        check(&FakeHost::new(), Path::new("/")).unwrap();
    }
}
