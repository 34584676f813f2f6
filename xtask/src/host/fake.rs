//! A machine whose programs are shell scripts, for tests.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::Host;

/// A host whose `PATH` is one directory of scripts.
pub struct FakeHost {
    host: Host,
    bin: TempDir,
}

impl FakeHost {
    /// A machine without any program.
    pub fn new() -> Self {
        let bin = TempDir::new().unwrap();
        let path = bin.path().into();
        let host =
            Host { path, cxx: None, libtorch: None, libtorch_use_pytorch: false, chromium: None };
        Self { host, bin }
    }

    /// Adds a program; the script sees the real `PATH` as `REAL_PATH`.
    pub fn with(self, program: &str, script: &str) -> Self {
        let real_path = std::env::var("PATH").unwrap();
        let text = format!("#!/bin/sh\nREAL_PATH='{real_path}'\n{script}\n");
        // Another process writes the program. If this process had the file open for writing, a fork in
        // another test's thread could inherit it, and the file would be "busy" to execute.
        let status = Command::new("/bin/sh")
            .args(["-c", "printf %s \"$1\" > \"$2\" && chmod +x \"$2\"", "sh", &text])
            .arg(self.bin.path().join(program))
            .status()
            .unwrap();
        assert!(status.success());
        self
    }

    /// The directory of the machine's programs.
    pub fn programs(&self) -> &Path {
        self.bin.path()
    }

    /// Sets the variable `CXX` of the machine.
    pub fn with_cxx(mut self, cxx: &str) -> Self {
        self.host.cxx = Some(cxx.into());
        self
    }

    /// Sets the variable `LIBTORCH` of the machine.
    pub fn with_libtorch(mut self, dir: &Path) -> Self {
        self.host.libtorch = Some(dir.into());
        self
    }

    /// Sets the variable `LIBTORCH_USE_PYTORCH` of the machine.
    pub fn with_pytorch(mut self) -> Self {
        self.host.libtorch_use_pytorch = true;
        self
    }
}

impl Deref for FakeHost {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
