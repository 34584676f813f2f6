//! Machines that give less than a program expects: full disks, small limits, closed streams, odd
//! environments.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};

use super::calls::no_panic_in;
use super::{Campaign, Case, Survival, fixtures};
use crate::workspace;

/// The campaign that runs every command under every limit.
pub const CAMPAIGN: Campaign = Campaign {
    name: "limits",
    faults: "full disks, small limits, closed streams, odd environments and arguments",
    full: LIMITS.len() * COMMANDS.len(),
    short: 22,
    try_case,
};

/// A limit, as a script for bash. In the script `"$@"` is zprobe's command line, and `$PWD` is the directory
/// of the case.
struct Limit {
    script: &'static str,
    hinders: Hinders,
}

/// The failures of zprobe that a limit excuses.
#[derive(Clone, Copy, PartialEq)]
enum Hinders {
    /// No failure: zprobe does the same as without the limit.
    Nothing,
    /// Any failure: zprobe may refuse, or report that an engine did not run. Bugs must not be found in the
    /// engine.
    Anything,
}

/// The arguments of `zprobe` that are tried under each limit. `DISK` is a directory that a limit may have
/// filled, and `FIXTURE` is the directory of a recorded trace.
const COMMANDS: &[&[&str]] = &[
    &["run", "--ga", "2", "--timeout", "60", "--out", "DISK/run"],
    &["run", "--ga", "1", "--timeout", "60", "--repeat", "2", "--out", "DISK/run"],
    &["diagnose", "FIXTURE", "--export-html", "DISK/a.html", "--export-junit", "DISK/a.xml"],
    &["report", "FIXTURE", "--out", "DISK/a.zip", "--force"],
];

macro_rules! limits {
    ($($hinders:ident: [$($script:literal,)*],)*) => {
        &[$($(Limit { script: $script, hinders: Hinders::$hinders },)*)*]
    };
}

/// All limits. A limit that mounts a file system or leaves a network does so in a namespace of its own.
const LIMITS: &[Limit] = limits! {
    Nothing: [
        r#""$@" <&-"#,
        r#""$@" >&-"#,
        r#""$@" 2>&-"#,
        r#""$@" <&- >&- 2>&-"#,
        r#"set -o pipefail; "$@" | head -c 1 >/dev/null"#,
        r#"nohup "$@" </dev/null"#,
        r#"setsid --wait "$@""#,
        r#"unset HOME; "$@""#,
        r#"HOME=/nonexistent XDG_CACHE_HOME=relative "$@""#,
        r#"TMPDIR=/nonexistent "$@""#,
        r#"PATH= "$@""#,
        r#"unset PATH; "$@""#,
        r#"LANG=C LC_ALL=C "$@""#,
        r#"LANG=tr_TR.ISO-8859-9 LC_ALL=xx_YY "$@""#,
        r#"TERM=dumb "$@""#,
        r#"TERM= CLICOLOR_FORCE=1 NO_COLOR=1 "$@""#,
        r#"COLUMNS=1 "$@""#,
        r#"COLUMNS=0 "$@""#,
        r#"COLUMNS=99999999999999999999 "$@""#,
        r#"TZ=Mars/Olympus "$@""#,
        r#"TZ=:/dev/null "$@""#,
        r#"trap '' HUP INT QUIT USR1 PIPE TERM; "$@""#,
        r#"trap '' CHLD; "$@""#,
        r#"exec python3 -c 'import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); os.execv(sys.argv[1], sys.argv[1:])' "$@""#,
        r#"ulimit -c 0; "$@""#,
        r#"exec 9</dev/null 10</dev/null 200</dev/null; "$@""#,
        r#"RUST_BACKTRACE=full RUST_LOG=trace "$@""#,
        r#"export NOT_UTF8=$'\xff\xfe'; "$@""#,
        r#"export BIG=$(head -c 100000 /dev/zero | tr '\0' x); "$@""#,
    ],
    Anything: [
        r#""$@" >/dev/full"#,
        r#""$@" 2>/dev/full"#,
        r#"umask 777; "$@""#,
        r#"mkdir gone; cd gone; rmdir ../gone; "$@""#,
        r#"ulimit -f 0; "$@""#,
        r#"ulimit -f 1; "$@""#,
        r#"ulimit -f 20; "$@""#,
        r#"ulimit -f 64; "$@""#,
        r#"ulimit -n 6; "$@""#,
        r#"ulimit -n 8; "$@""#,
        r#"ulimit -n 12; "$@""#,
        r#"ulimit -n 16; "$@""#,
        r#"ulimit -n 24; "$@""#,
        r#"ulimit -s 64; "$@""#,
        r#"ulimit -s 256; "$@""#,
        r#"ulimit -v 200000; "$@""#,
        r#"ulimit -v 600000; "$@""#,
        r#"ulimit -v 1500000; "$@""#,
        r#"ulimit -d 50000; "$@""#,
        r#"ulimit -t 1; "$@""#,
        r#"unshare --net "$@""#,
        r#"mount -t tmpfs -o size=4k none disk; "$@""#,
        r#"mount -t tmpfs -o size=32k none disk; "$@""#,
        r#"mount -t tmpfs -o size=64k none disk; "$@""#,
        r#"mount -t tmpfs -o size=96k none disk; "$@""#,
        r#"mount -t tmpfs -o size=128k none disk; "$@""#,
        r#"mount -t tmpfs -o size=1m,nr_inodes=2 none disk; "$@""#,
        r#"mount -t tmpfs -o size=1m,nr_inodes=5 none disk; "$@""#,
        r#"mount -t tmpfs -o ro none disk; "$@""#,
        r#"mount -t tmpfs -o ro none /dev/shm; "$@""#,
        r#"mount -t tmpfs none /proc; "$@""#,
        r#"rmdir disk; : >disk; "$@""#,
        r#"rmdir disk; ln -s disk disk; "$@""#,
        r#"rmdir disk; mkfifo disk; "$@""#,
        r#"mkdir disk/run; mkfifo disk/run/rank-0.stderr.log disk/run/trace.jsonl; "$@""#,
        r#"mkdir -p disk/run/trace.jsonl disk/run/report.json; "$@""#,
        r#""$@" $'\xff\xfe'"#,
        r#"mv disk $'d\xffsk'; set -- "${@//disk/$'d\xffsk'}"; "$@""#,
        r#"name=$(head -c 300 /dev/zero | tr '\0' n); set -- "${@//disk/disk/$name}"; "$@""#,
        r#"mv disk $'d\nisk'; set -- "${@//disk/$'d\nisk'}"; "$@""#,
    ],
};

fn try_case(case: &mut Case) -> Result<Survival> {
    let limit = &LIMITS[case.number % LIMITS.len()];
    let words = COMMANDS[case.number / LIMITS.len()];
    let needs_namespace = limit.script.contains("mount ") || limit.script.contains("unshare ");
    if needs_namespace && !*NAMESPACES {
        return Ok(Survival::Skipped("it takes a namespace, which only root may make".to_owned()));
    }
    let disk = case.dir.join("disk");
    std::fs::create_dir(&disk).context("cannot make a directory")?;
    let place = |word: &&str| {
        let word = word.replace("DISK", &disk.to_string_lossy());
        word.replace("FIXTURE", &fixtures::dir("boundary-leak").to_string_lossy())
    };
    let zprobe = workspace::zprobe()?.into_os_string();
    let mut call = if needs_namespace {
        case.call(Path::new("unshare")).args(["--mount", "bash"])
    } else {
        case.call(Path::new("bash"))
    };
    // A disk in a namespace disappears with the namespace, so its contents are copied out.
    call = call.args([
        "-c",
        &format!("{}\ncode=$?; cp -r disk kept 2>/dev/null; exit $code", limit.script),
    ]);
    call = call.args(["bash".into(), zprobe]).args(words.iter().map(place));
    let ended = call.ended().with_context(|| limit.script)?;
    judge(case, limit, words[0], ended)
        .with_context(|| format!("{}: {}", words[0], limit.script))?;
    Ok(Survival::Survived)
}

/// Checks that a command may end like this under a limit.
fn judge(case: &Case, limit: &Limit, command: &str, ended: super::calls::Ended) -> Result<()> {
    case.nothing_is_left()?;
    no_panic_in(&case.dir)?;
    let is_diagnosis = command == "diagnose";
    let usual = i64::from(is_diagnosis);
    let closed = limit.script.contains("2>");
    if closed && ended.status.code() == Some(2) && limit.hinders == Hinders::Anything {
        // The limit closes standard error, so there is no message to check.
        return ended.no_panic();
    }
    match limit.hinders {
        Hinders::Nothing => ended.code_of(&[usual])?,
        // zprobe never finds a bug in a correct engine.
        Hinders::Anything if !is_diagnosis => ended.code_of(&[0, 2, 3, 4])?,
        Hinders::Anything => ended.code_of(&[1, 2])?,
    };
    for trace in ["disk/run", "kept/run"].map(|it| case.dir.join(it)) {
        if trace.join(fixtures::TRACE).is_file() {
            let diagnosed = case.zprobe(["diagnose".as_ref(), trace.as_os_str()])?.ended()?;
            let code = diagnosed.code_of(&[0, 2, 3, 4])?;
            let first = std::fs::read(trace.join(fixtures::TRACE)).unwrap_or_default();
            ensure!(
                code != 2 || !first.contains(&b'\n'),
                "a trace was written that cannot be read"
            );
        }
    }
    Ok(())
}

/// True if this user may make namespaces.
static NAMESPACES: LazyLock<bool> = LazyLock::new(|| {
    let mut unshare = Command::new("unshare");
    let status = unshare.args(["--mount", "--net", "true"]).status();
    status.is_ok_and(|status| status.success())
});
