//! The channels of ranks that have joined: files that are read while the ranks write them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use crate::LaunchError;
use crate::channel::{Channel, ChannelState};
use crate::rank_report::{RankReport, ReportSink};
use zprobe_model::spec::MOST_RANKS;
use zprobe_model::trace::LONGEST_LINE;

/// The channels of all ranks that have joined.
pub(super) struct Channels {
    directory: PathBuf,
    /// The channel of each rank; `None` after a line that is too long, or once the rank is no longer watched.
    ranks: BTreeMap<usize, Option<Channel>>,
}

impl Channels {
    /// Returns the channels in this directory. No channel is open yet.
    pub(super) fn in_dir(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ranks: BTreeMap::new() }
    }

    /// Opens the new channels. Returns the rank and the process id of each.
    pub(super) fn look_for_new(&mut self) -> io::Result<Vec<(usize, u32)>> {
        let mut new = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let Some((rank, pid)) = rank_and_process(&path) else { continue };
            // A rank that its launcher has restarted is not watched a second time.
            if rank < MOST_RANKS && !self.ranks.contains_key(&rank) {
                let file = File::open(&path)?;
                self.ranks.insert(rank, Some(Channel::over(file.into(), LONGEST_LINE)));
                new.push((rank, pid));
            }
        }
        Ok(new)
    }

    /// Reports the new lines of all channels.
    pub(super) fn hear(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        for (&rank, channel) in &mut self.ranks {
            report_new_lines(rank, channel, sink)?;
        }
        Ok(())
    }
}

/// Reports the new lines of one rank.
fn report_new_lines(
    rank: usize,
    channel: &mut Option<Channel>,
    sink: &mut ReportSink<'_>,
) -> Result<(), LaunchError> {
    let Some(mut open) = channel.take() else { return Ok(()) };
    loop {
        let state = open.receive();
        while let Some(line) = open.next_line() {
            let is_too_long = line.is_err();
            sink(RankReport::Line { rank, line })?;
            if is_too_long {
                return Ok(());
            }
        }
        // At the end of a file, the channel reports the state of a closed pipe, but the rank may write more.
        if state == ChannelState::Closed {
            if is_unlinked(&open) {
                return sink(RankReport::LetGo { rank });
            }
            *channel = Some(open);
            return Ok(());
        }
    }
}

/// True if a rank has unlinked its channel, which means that the rank is no longer watched.
fn is_unlinked(channel: &Channel) -> bool {
    fstat(channel).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Returns the rank and the process of a channel file, from its name (`0-4711.jsonl`), or `None` for other files.
fn rank_and_process(path: &Path) -> Option<(usize, u32)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    let (rank, pid) = name.split_once('-')?;
    Some((rank.parse().ok()?, pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns the new lines, each with the number of its rank in front.
    fn new_lines(channels: &mut Channels) -> Vec<String> {
        let mut lines = Vec::new();
        let mut sink = |report: RankReport<'_>| {
            if let RankReport::Line { rank, line: Ok(line) } = report {
                lines.push(format!("{rank} {}", String::from_utf8_lossy(line)));
            }
            Ok(())
        };
        channels.hear(&mut sink).expect("a sink that takes everything");
        lines
    }

    #[test]
    fn files_are_read_while_they_grow() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut channels = Channels::in_dir(dir.path());
        let open = |name: &str| File::create(dir.path().join(name)).expect("a file");
        assert!(channels.look_for_new().expect("a directory").is_empty());
        let (mut first, _other) = (open("1-20.jsonl"), open("mail"));
        assert_eq!(channels.look_for_new().expect("a directory"), [(1, 20)]);
        first.write_all(b"one\ntw").expect("room");
        assert_eq!(new_lines(&mut channels), ["1 one"]);
        assert!(new_lines(&mut channels).is_empty());
        let mut again = open("1-30.jsonl");
        again.write_all(b"of a rank that was started once more\n").expect("room");
        assert!(channels.look_for_new().expect("a directory").is_empty());
        first.write_all(b"o\n").expect("room");
        assert_eq!(new_lines(&mut channels), ["1 two"]);
    }

    #[test]
    fn a_rank_that_unlinks_its_file_is_let_go_after_its_last_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut channels = Channels::in_dir(dir.path());
        let path = dir.path().join("3-1.jsonl");
        fs::write(&path, "last\nhal").expect("room");
        channels.look_for_new().expect("a directory");
        fs::remove_file(&path).expect("a file");
        let mut reports = Vec::new();
        let mut sink = |report: RankReport<'_>| {
            reports.push(match report {
                RankReport::Line { rank, .. } => format!("line {rank}"),
                RankReport::LetGo { rank } => format!("let go {rank}"),
                _ => "else".to_owned(),
            });
            Ok(())
        };
        channels.hear(&mut sink).expect("a sink");
        channels.hear(&mut sink).expect("a sink");
        assert_eq!(reports, ["line 3", "let go 3"]);
    }

    #[test]
    fn a_file_longer_than_a_pipe_is_read_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut channels = Channels::in_dir(dir.path());
        let text = format!("{}\nend\n", "x".repeat(5 << 20));
        fs::write(dir.path().join("0-1.jsonl"), text).expect("room");
        channels.look_for_new().expect("a directory");
        let lines = new_lines(&mut channels);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [(5 << 20) + 2, 5]);
    }
}
