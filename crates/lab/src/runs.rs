//! Recorded runs by their names, as a user types them, and what is known about each run without its trace.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail, ensure};

use super::recorded::reported;
use super::secrets;
use super::store::{COMMAND_FILE, Recorded, everywhere};
use zprobe_model::run_dir;
use zprobe_model::spec::{Engine, RunSpec};
use zprobe_report::words::{amount, one_line};
use zprobe_report::{Report, Verdict};

/// The name of the newest run; `latest~1` is the run before it.
pub const LATEST: &str = "latest";

/// Largest size of the file with the typed command, in bytes.
const MOST_COMMAND: u64 = 1 << 20;

/// The largest number of runs that the error about an ambiguous name lists.
const MOST_CANDIDATES: usize = 10;

/// The directory of the run that a user names by a path, by a unique beginning of its name, or by `latest` or
/// `latest~N`. Without a name, the newest run.
///
/// # Errors
/// When no run or more than one run has this name, or the runs cannot be read.
pub fn find(base: &Path, given: Option<&Path>) -> Result<PathBuf> {
    let word = given.map_or_else(|| LATEST.into(), Path::to_string_lossy);
    if let Some(path) = given.filter(|path| path.symlink_metadata().is_ok()) {
        return Ok(path.to_owned());
    }
    let runs = everywhere(base)?;
    let age = match word.strip_prefix(LATEST) {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix('~').and_then(|number| number.parse::<usize>().ok()),
        None => None,
    };
    if let Some(age) = age {
        ensure!(
            !runs.is_empty(),
            "no run is recorded here, in .zprobe; record one with `zprobe run`, or name the directory of a \
             recorded run"
        );
        ensure!(
            age < runs.len(),
            "{word}: only {} recorded here; `zprobe list runs` lists them",
            match runs.len() {
                1 => "1 run is".to_owned(),
                many => format!("{many} runs are"),
            }
        );
        return Ok(runs[age].path.clone());
    }
    if let Some(run) = runs.iter().find(|run| run.name == word) {
        return Ok(run.path.clone());
    }
    let fitting: Vec<&Recorded> =
        runs.iter().filter(|run| !word.is_empty() && run.name.starts_with(&*word)).collect();
    match fitting.as_slice() {
        [run] => Ok(run.path.clone()),
        [] => bail!(
            "{word}: there is no such path, and no run has a name that begins with this; `zprobe list runs` lists the \
             names of the runs, and {LATEST} is the newest run"
        ),
        many => {
            let lines = many.iter().take(MOST_CANDIDATES).map(|run| {
                format!("\n  {}  {}", one_line(&run.name), command(&run.path).unwrap_or_default())
            });
            let more = many.len().saturating_sub(MOST_CANDIDATES);
            let more = (more > 0).then(|| format!("\n  and {}", amount(more, "more run")));
            bail!(
                "{word}: the names of {} begin with this; type more of the name:{}",
                amount(many.len(), "run"),
                lines.chain(more).collect::<String>()
            )
        }
    }
}

/// The command line of this process as the user typed it, without secrets, also those of the configuration in `spec`, the
/// settings of a run of an engine.
/// Invalid Unicode is shown as replacement characters.
pub fn typed(spec: Option<&RunSpec>) -> String {
    let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
    let words: Vec<String> = ["zprobe".to_owned()].into_iter().chain(words).collect();
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    let line = words.join(" ");
    secrets::of_command(&line, spec).text(&line)
}

/// A word of a command line, in quotes if a shell needs them. An equals sign, which shells take only for an assignment in
/// front of the command, needs none.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    shlex::try_quote(word).unwrap_or_default()
}

/// The command with which the user recorded a run, in one line; `None` if an older zprobe recorded the run.
pub fn command(run_dir: &Path) -> Option<String> {
    let text = run_dir::read_text(&run_dir.join(COMMAND_FILE), MOST_COMMAND).ok()?;
    Some(one_line(text.trim_end()))
}

/// The value of `--python` in the command of `zprobe run` or `zprobe check` with which the user recorded a run, in quotes
/// if a shell needs them; `None` if the command has no such flag.
pub fn typed_python(run_dir: &Path) -> Option<String> {
    let words = shlex::split(&command(run_dir)?)?;
    let is_one = |name: &str| words.get(1).is_some_and(|word| word == name);
    let at = words.iter().position(|word| word == "--python" || word.starts_with("--python="))?;
    let value = match words[at].strip_prefix("--python=") {
        Some(value) => value,
        None => words.get(at + 1)?,
    };
    (is_one("run") || is_one("check")).then(|| quoted(value).into_owned())
}

/// A recorded run in a listing. The engine and the verdict come from the report of the run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedRun {
    /// The name of the run.
    pub name: String,
    /// The directory of the run.
    pub run_dir: String,
    /// The time at which the run ended, in UTC.
    pub written: String,
    /// The command that the user typed, or else the command that repeats the run; `None` if neither is known.
    pub command: Option<String>,
    /// The engine of the run; `None` without a report.
    pub engine: Option<Engine>,
    /// The verdict on the run; `None` without a report.
    pub verdict: Option<Verdict>,
    /// The size of all files of the run, in bytes.
    pub bytes: u64,
}

impl ListedRun {
    /// Reads the command and the report of a recorded run.
    pub fn of(run: &Recorded) -> Self {
        let report: Option<Report> = reported(&run.path).ok();
        let repeats = || report.as_ref().and_then(|report| report.run.command.clone());
        Self {
            name: one_line(&run.name),
            run_dir: run.path.display().to_string(),
            written: humantime::format_rfc3339_seconds(run.written).to_string(),
            command: command(&run.path).or_else(repeats),
            engine: report.as_ref().map(|report| report.run.spec.engine()),
            verdict: report.map(|report| report.verdict),
            bytes: run.bytes,
        }
    }

    /// The verdict in one word; a run without a report has no verdict.
    pub fn verdict(&self) -> String {
        self.verdict.map_or_else(|| "no report".to_owned(), |verdict| verdict.to_string())
    }
}

/// The time since a moment in words, in its largest unit: `3 min ago`.
pub fn ago(moment: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(moment).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} ago", amount((seconds / 86_400) as usize, "day")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// A directory with these runs, the newest first.
    fn runs(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (age, name) in names.iter().enumerate() {
            let run = dir.path().join(".zprobe/runs").join(name);
            fs::create_dir_all(&run).unwrap();
            let trace = fs::File::create(run.join("trace.jsonl")).unwrap();
            trace.set_modified(SystemTime::now() - Duration::from_secs(60 * age as u64)).unwrap();
            fs::write(run.join(COMMAND_FILE), format!("zprobe run --seed {age}\n")).unwrap();
        }
        dir
    }

    #[test]
    fn a_run_is_found_by_its_age_by_the_beginning_of_its_name_and_by_its_path() {
        let dir = runs(&["b1", "b", "a2", "a1"]);
        let found = |name: &str| {
            let path =
                find(dir.path(), Some(Path::new(name))).map_err(|error| error.to_string())?;
            Ok::<_, String>(path.file_name().unwrap().to_string_lossy().into_owned())
        };
        assert_eq!(find(dir.path(), None).unwrap(), dir.path().join(".zprobe/runs/b1"));
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path(), Some(elsewhere.path())).unwrap(), elsewhere.path());
        for (name, run) in
            [("latest", "b1"), ("latest~0", "b1"), ("latest~3", "a1"), ("b", "b"), ("a2", "a2")]
        {
            assert_eq!(found(name).unwrap(), run, "{name}");
        }
        assert_eq!(
            found("a").unwrap_err(),
            "a: the names of 2 runs begin with this; type more of the name:\n  a2  zprobe run --seed 2\n  \
             a1  zprobe run --seed 3"
        );
        for (name, said) in [
            ("latest~4", "only 4 runs are recorded here; `zprobe list runs` lists them"),
            ("latest~x", "no run has a name that begins with this; `zprobe list runs` lists the"),
            ("c", "no run has a name that begins with this; `zprobe list runs` lists the"),
            ("", "there is no such path"),
        ] {
            let error = found(name).unwrap_err();
            assert!(error.contains(said), "{name}: {error}");
        }
    }

    #[test]
    fn where_no_run_is_recorded_it_says_how_to_come_by_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            find(dir.path(), None).unwrap_err().to_string(),
            "no run is recorded here, in .zprobe; record one with `zprobe run`, or name the directory of a \
             recorded run"
        );
    }

    #[test]
    fn an_age_is_told_in_its_largest_unit() {
        let now = SystemTime::now();
        let told = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [5, 61, 7300, 86_400, 200_000].map(told),
            ["5 s ago", "1 min ago", "2 h ago", "1 day ago", "2 days ago"]
        );
        assert_eq!(ago(now + Duration::from_secs(9), now), "0 s ago");
    }
}
