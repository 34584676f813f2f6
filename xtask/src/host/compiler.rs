//! The C++ compiler of the machine.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Host;

/// The compiler that the `cc` crate uses without `CXX`.
const DEFAULT: &str = "c++";

/// A C++ compiler of this machine.
#[derive(Debug)]
pub struct Compiler {
    /// The program and its leading arguments, as `CXX` may hold them: `ccache g++`.
    words: Vec<String>,
}

impl Compiler {
    /// Finds the compiler: `CXX`, or one of the usual names.
    pub fn find(host: &Host) -> Result<Self> {
        if let Some(cxx) = &host.cxx {
            let words: Vec<_> =
                cxx.to_string_lossy().split_whitespace().map(String::from).collect();
            match words.first() {
                Some(program) if host.has(program) => return Ok(Self { words }),
                _ => bail!(
                    "CXX is set to `{}`, which is not a program here: correct it, or unset it to \
                     use c++, g++ or clang++",
                    cxx.display()
                ),
            }
        }
        match [DEFAULT, "g++", "clang++"].into_iter().find(|program| host.has(program)) {
            Some(program) => Ok(Self { words: vec![program.into()] }),
            None => bail!(
                "there is no C++ compiler: none of c++, g++ and clang++ is on PATH\n\
                 install one (Debian, Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`), \
                 or set CXX"
            ),
        }
    }

    /// The value of `CXX` with which the `cc` crate uses this compiler; `None` if the crate does so without
    /// `CXX`.
    pub fn cxx(&self) -> Option<OsString> {
        (self.words != [DEFAULT]).then(|| self.words.join(" ").into())
    }

    /// Makes an empty shared library.
    pub fn empty_shared_library(&self, host: &Host, library: &Path) -> Result<()> {
        let mut command = self.command(host);
        command.args(["-shared", "-x", "c++", "/dev/null", "-o"]).arg(library);
        let output = command
            .output()
            .with_context(|| format!("cannot start the C++ compiler `{}`", self.words[0]))?;
        if !output.status.success() {
            bail!(
                "the C++ compiler cannot make a shared library: `{}` failed ({}):\n{}",
                self.words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Ok(())
    }

    /// The compiler's command with its leading arguments.
    fn command(&self, host: &Host) -> Command {
        let mut command = host.command(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn none_says_what_to_install() {
        let error = Compiler::find(&FakeHost::new()).unwrap_err().to_string();
        assert!(error.starts_with("there is no C++ compiler"), "{error}");
        assert!(error.contains("apt install g++"), "{error}");
    }

    #[test]
    fn the_default_needs_no_cxx() {
        let host = FakeHost::new().with("c++", "").with("g++", "");
        assert_eq!(Compiler::find(&host).unwrap().cxx(), None);
    }

    #[test]
    fn another_name_is_given_to_cargo() {
        let host = FakeHost::new().with("clang++", "");
        assert_eq!(Compiler::find(&host).unwrap().cxx(), Some("clang++".into()));
    }

    #[test]
    fn cxx_may_hold_arguments() {
        let host = FakeHost::new().with("ccache", "").with_cxx("ccache g++");
        assert_eq!(Compiler::find(&host).unwrap().cxx(), Some("ccache g++".into()));
    }

    #[test]
    fn a_wrong_cxx_is_named() {
        let host = FakeHost::new().with("c++", "").with_cxx("nonesuch");
        let error = Compiler::find(&host).unwrap_err().to_string();
        assert!(error.starts_with("CXX is set to `nonesuch`"), "{error}");
    }

    #[test]
    fn a_failing_compiler_is_quoted() {
        let host = FakeHost::new().with("c++", "echo 'no space for crt1.o' >&2; exit 4");
        let compiler = Compiler::find(&host).unwrap();
        let error = compiler.empty_shared_library(&host, Path::new("x.so")).unwrap_err();
        assert!(error.to_string().ends_with("no space for crt1.o"), "{error}");
    }
}
