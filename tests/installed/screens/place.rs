//! The place where a reader types: a directory with environments, and a terminal of 80 columns.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use anstyle::{Ansi256Color, Effects, RgbColor, Style};
use tempfile::TempDir;

use super::page::Installed;

/// Columns of the terminal.
const COLUMNS: u16 = 80;

/// Rows of the terminal: more than any sample has, so that nothing scrolls away.
const ROWS: u16 = 2_000;

/// The torch that is installed with every engine.
const TORCH: &str = "torch==2.11.0";

/// A directory of one reader.
pub struct Place {
    dir: TempDir,
    engines: Vec<PathBuf>,
}

/// End of a command on the terminal.
pub struct Screen {
    /// Lines on the terminal, without spaces at their ends.
    pub text: String,
    /// The lines of `text` with the escape codes of their colours.
    pub coloured: String,
    /// Exit code of the command.
    pub code: i32,
}

impl Place {
    /// An empty directory, but for the programs in `target/release`, as in a checkout.
    pub fn new() -> Self {
        let place = Self { dir: TempDir::new().unwrap(), engines: Vec::new() };
        let target = place.dir.path().join("target");
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(programs(), target.join("release")).unwrap();
        place
    }

    /// Puts environments with these engines here, and takes away those that were here.
    pub fn have(&mut self, engines: &[Installed]) {
        for old in self.engines.drain(..) {
            fs::remove_file(old).unwrap();
        }
        for Installed { package, dir } in engines {
            let link = self.dir.path().join(dir);
            std::os::unix::fs::symlink(environment(package), &link).unwrap();
            self.engines.push(link);
        }
    }

    /// Writes a file.
    pub fn write(&self, path: &Path, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Types a command, and waits for its end.
    pub fn type_in(&self, command: &str) -> Screen {
        let script = format!("stty rows {ROWS} cols {COLUMNS}; {command}");
        let Output { stdout, status, .. } = clean("script")
            .args(["-qec", &script, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .current_dir(self.dir.path())
            .output()
            .expect("script(1) of util-linux gives a program a terminal");
        let terminal = shown(&stdout);
        let text = self.without_place(&text(&terminal));
        let coloured = self.without_place(&coloured(&terminal));
        Screen { text, coloured, code: status.code().expect("script ends by itself") }
    }

    /// Standard output of zprobe, to a pipe. It must not end with a usage error.
    pub fn print(&self, args: &[&str]) -> String {
        let Output { stdout, stderr, status } =
            clean("zprobe").args(args).current_dir(self.dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{args:?}: {said}");
        self.without_place(&String::from_utf8(stdout).unwrap())
    }

    /// The text with the paths of this directory and of the repository taken out.
    fn without_place(&self, text: &str) -> String {
        let real = fs::canonicalize(self.dir.path()).unwrap();
        // The programs are those of this repository.
        [real.as_path(), Path::new(env!("CARGO_MANIFEST_DIR"))]
            .iter()
            .fold(text.to_owned(), |text, dir| text.replace(&format!("{}/", dir.display()), ""))
    }
}

/// The screen of a terminal to which a command has written.
fn shown(written: &[u8]) -> vt100::Screen {
    let size = |number| NonZeroU16::new(number).unwrap();
    let mut terminal = vt100::Parser::new(size(ROWS), size(COLUMNS), 0);
    terminal.process(written);
    terminal.screen().clone()
}

/// The lines of a screen, without spaces at their ends.
fn text(screen: &vt100::Screen) -> String {
    let text = screen.contents();
    let lines = text.trim_end().lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// The lines of a screen with an escape code before and after each run of cells that have a style.
fn coloured(screen: &vt100::Screen) -> String {
    let rows = text(screen).lines().count();
    let mut all = String::new();
    for row in 0..u16::try_from(rows).unwrap() {
        let mut line = String::new();
        let mut last = Style::new();
        for cell in (0..COLUMNS).filter_map(|column| screen.cell(row, column)) {
            let style = style(cell);
            if style != last {
                line += &format!("{last:#}{style}");
                last = style;
            }
            line += if cell.has_contents() { cell.contents() } else { " " };
        }
        all += &format!("{}{last:#}\n", line.trim_end());
    }
    all
}

/// The style of a cell; only the styles that zprobe uses.
fn style(cell: &vt100::Cell) -> Style {
    let colour = match cell.fgcolor() {
        vt100::Color::Default => None,
        vt100::Color::Idx(index) => Some(Ansi256Color(index).into()),
        vt100::Color::Rgb(red, green, blue) => Some(RgbColor(red, green, blue).into()),
    };
    let mut style = Style::new().fg_color(colour);
    style |= if cell.bold() { Effects::BOLD } else { Effects::new() };
    style |= if cell.dim() { Effects::DIMMED } else { Effects::new() };
    style |= if cell.underline() { Effects::UNDERLINE } else { Effects::new() };
    style
}

/// Directory of the programs under test.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_zprobe")).parent().unwrap().to_owned()
}

/// The directory of an environment with this engine, made if it is not there.
fn environment(package: &str) -> PathBuf {
    let mut command = clean(env!("CARGO_BIN_EXE_zprobe"));
    let packages = [TORCH, package].into_iter().take(if package == TORCH { 1 } else { 2 });
    let output = command.arg("provision").args(packages).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no environment with {package}: {said}");
    let python = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    python.ancestors().nth(2).expect("bin/python of an environment").to_owned()
}

/// A program with zprobe on its path, in whose environment nothing else chooses what zprobe does.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let chooses = text.starts_with("ZPROBE_") && text != "ZPROBE_CACHE_DIR";
        let colours = text.starts_with("CLICOLOR") || text.ends_with("_COLOR");
        let finds = ["VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "CI"].contains(&&*text);
        if chooses || colours || finds || text.starts_with("GITHUB_") {
            command.env_remove(&name);
        }
    }
    let inherited = env::var_os("PATH").unwrap_or_default();
    let path = [programs()].into_iter().chain(env::split_paths(&inherited));
    command.env("PATH", env::join_paths(path).unwrap()).stdin(Stdio::null());
    command
}

#[test]
fn a_line_that_was_erased_is_not_shown() {
    let screen = shown(b"one  \r\nspinner\r\x1b[2Ktwo\r\n\r\n");
    assert_eq!((text(&screen), coloured(&screen)), ("one\ntwo\n".into(), "one\ntwo\n".into()));
}

#[test]
fn colours_and_spaces_are_kept() {
    let screen = shown(b"a  \x1b[1;31mred\x1b[0m b\r\n");
    assert_eq!(anstream::adapter::strip_str(&coloured(&screen)).to_string(), "a  red b\n");
    assert!(coloured(&screen).contains("\x1b[1m"), "{:?}", coloured(&screen));
}
