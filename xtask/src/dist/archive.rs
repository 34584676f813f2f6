//! The archive of a release: the program with its documentation and completions, which can be unpacked
//! anywhere, without Python.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, Header};

use super::VERSION;
use super::workshop::{EPOCH, Workshop};
use crate::command::run;
use crate::workspace;

/// The files of the repository that go into the archive.
const FILES: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The shells whose completions go into the archive, each with the name of its file.
const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "zprobe.bash"), ("zsh", "_zprobe"), ("fish", "zprobe.fish")];

/// The file mode of a program in the archive.
const PROGRAM: u32 = 0o755;

/// The file mode of all files in the archive that are no programs.
const PLAIN: u32 = 0o644;

/// Packs the archive for the target `triple` around its `program`, which is `zprobe`. The completions and manual pages
/// are those of `runnable`, the same program for this machine.
pub fn pack(workshop: &Workshop, triple: &str, program: &Path, runnable: &Path) -> Result<()> {
    let name = format!("zprobe-{VERSION}-{triple}");
    let path = workshop.dist.join(format!("{name}.tar.gz"));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let gzip = GzBuilder::new().write(file, Compression::best());
    let mut archive = Archive { tar: Builder::new(gzip), name };
    fill(&mut archive, workshop, program, runnable)
        .and_then(|()| Ok(archive.tar.into_inner()?.finish()?.flush()?))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Adds all files of the archive.
fn fill<W: Write>(
    archive: &mut Archive<W>,
    workshop: &Workshop,
    program: &Path,
    runnable: &Path,
) -> Result<()> {
    archive.file("zprobe", program, PROGRAM)?;
    for name in FILES {
        archive.file(name, &workspace::root().join(name), PLAIN)?;
    }
    for (shell, name) in COMPLETIONS {
        // A completion script names the program as it was called, and users have the program on another path.
        let mut command = Command::new(runnable);
        let output = command.arg0("zprobe").args(["completions", shell]).output()?;
        ensure!(output.status.success(), "`zprobe completions {shell}` failed");
        archive.add(&format!("completions/{name}"), &output.stdout, PLAIN)?;
    }
    let pages = workshop.stage.join("man1");
    run(Command::new(runnable).args(["man", "--out-dir"]).arg(&pages))?;
    let mut pages: Vec<_> = fs::read_dir(pages)?.collect::<Result<_, _>>()?;
    pages.sort_by_key(fs::DirEntry::file_name);
    for page in pages {
        let name = page.file_name();
        archive.file(&format!("man1/{}", name.to_string_lossy()), &page.path(), PLAIN)?;
    }
    Ok(())
}

/// An archive whose files are all in one directory.
struct Archive<W: Write> {
    tar: Builder<W>,
    name: String,
}

impl<W: Write> Archive<W> {
    /// Adds a file of this machine.
    fn file(&mut self, name: &str, path: &Path, mode: u32) -> Result<()> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add(name, &bytes, mode)
    }

    /// Adds a file with this content; the owner and the time are the same for all files.
    fn add(&mut self, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_mtime(EPOCH);
        let path = format!("{}/{name}", self.name);
        Ok(self.tar.append_data(&mut header, path, bytes)?)
    }
}
