//! The mailbox of the ranks of one machine: a directory with one file for each message.
//!
//! A rank reads the messages of the other ranks of its machine directly from this directory (`mailbox.py`). The agents
//! pass messages on from one machine to another.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::rank_report::RankMessage;

/// The name of the mailbox directory, which is inside the directory of the channels.
const DIRECTORY: &str = "mail";

/// The suffix of the file of a message that is still being written.
const UNFINISHED: &str = ".part";

/// The mailbox of the ranks of this machine.
pub(super) struct Mailbox {
    directory: PathBuf,
    /// The file names of the messages that were collected or delivered.
    seen: BTreeSet<String>,
}

impl Mailbox {
    /// Returns the mailbox inside the directory of the channels.
    pub(super) fn below(channels: &Path) -> Self {
        Self { directory: channels.join(DIRECTORY), seen: BTreeSet::new() }
    }

    /// Returns the messages that ranks of this machine have posted since the last call.
    pub(super) fn collect(&mut self) -> io::Result<Vec<RankMessage>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            // The directory does not exist before the first rank creates it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut rank_messages = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_name(&name) && !self.seen.contains(&name) {
                let text = fs::read_to_string(entry.path())?;
                self.seen.insert(name.clone());
                rank_messages.push(RankMessage { name, text });
            }
        }
        Ok(rank_messages)
    }

    /// Announces that a rank of this machine is gone, so that no other rank waits for its messages.
    pub(super) fn say_gone(&self, rank: usize) {
        let RankMessage { name, text } = RankMessage::of_gone(rank);
        // If no message was posted, or the mailbox is not writable, the other ranks stop waiting after their own
        // timeout.
        if self.directory.exists() {
            let _ = self.write(&name, &text);
        }
    }

    /// Puts a message from another machine into the mailbox.
    pub(super) fn deliver(&mut self, rank_message: &RankMessage) -> io::Result<()> {
        let RankMessage { name, text } = rank_message;
        if !is_name(name) || !self.seen.insert(name.clone()) {
            return Ok(());
        }
        fs::create_dir_all(&self.directory)?;
        self.write(name, text)
    }

    /// Writes a message completely or not at all.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let unfinished = self.directory.join(format!("{name}{UNFINISHED}"));
        fs::write(&unfinished, text)?;
        fs::rename(unfinished, self.directory.join(name))
    }
}

/// True for the file name of a message, such as `first-step.3`, and false for a name that leads to another directory.
fn is_name(name: &str) -> bool {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.' | '_');
    name.starts_with(|it: char| it.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
        && !name.ends_with(UNFINISHED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_message(name: &str) -> RankMessage {
        RankMessage { name: name.to_owned(), text: format!("to {name}") }
    }

    #[test]
    fn a_message_goes_from_one_machine_to_another_and_not_back() {
        let here = tempfile::tempdir().expect("a directory");
        let there = tempfile::tempdir().expect("a directory");
        let [mut first, mut second] = [here.path(), there.path()].map(Mailbox::below);
        assert_eq!(first.collect().expect("a mailbox that is not there yet"), []);
        let mail = here.path().join(DIRECTORY);
        fs::create_dir(&mail).expect("room");
        fs::write(mail.join("first-step.0"), "to first-step.0").expect("room");
        fs::write(mail.join("first-step.1.part"), "to").expect("room");
        assert_eq!(first.collect().expect("a mailbox"), [rank_message("first-step.0")]);
        assert_eq!(first.collect().expect("a mailbox"), []);
        second.deliver(&rank_message("first-step.0")).expect("room");
        let delivered = fs::read_to_string(there.path().join(DIRECTORY).join("first-step.0"));
        assert_eq!(delivered.expect("a message"), "to first-step.0");
        assert_eq!(second.collect().expect("a mailbox"), []);
    }

    #[test]
    fn the_loss_of_a_rank_goes_to_all_machines() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut mailbox = Mailbox::below(dir.path());
        mailbox.say_gone(1);
        assert!(!dir.path().join(DIRECTORY).exists());
        mailbox.deliver(&rank_message("first-step.0")).expect("room");
        mailbox.say_gone(1);
        let names: Vec<String> =
            mailbox.collect().expect("a mailbox").into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["gone.1"]);
    }

    #[test]
    fn a_message_stays_in_the_mailbox() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut mailbox = Mailbox::below(dir.path());
        for name in ["../0-1.jsonl", ".hidden", "/etc/passwd", "a/b", ""] {
            mailbox.deliver(&rank_message(name)).expect("nothing to write");
        }
        assert!(!dir.path().join(DIRECTORY).exists());
    }
}
