//! Outputs of other programs, with a time limit, so that zprobe never waits for ever.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two checks whether a program has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the whole output of a program, or `None` if the program was ended at the time limit. A program that is
/// stopped, for example by Ctrl-Z, has not ended.
///
/// # Errors
/// Fails if the program cannot be started.
pub fn output_within(command: &mut Command, limit: Duration) -> io::Result<Option<Output>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take().map(all_of), child.stderr.take().map(all_of));
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    };
    // A child that the program has left running may still hold the other end of a pipe.
    let rest = end.saturating_duration_since(Instant::now());
    let text =
        |pipe: Option<Receiver<Vec<u8>>>| pipe.map_or(Ok(Vec::new()), |it| it.recv_timeout(rest));
    match (text(stdout), text(stderr)) {
        (Ok(stdout), Ok(stderr)) => Ok(Some(Output { status, stdout, stderr })),
        (Err(RecvTimeoutError::Timeout), _) | (_, Err(RecvTimeoutError::Timeout)) => Ok(None),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Returns a receiver for all bytes of a pipe, which arrive once the pipe is closed.
fn all_of(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (give, take) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            let _ = give.send(bytes);
        }
    });
    take
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, limit: Duration) -> Option<Output> {
        output_within(Command::new("sh").args(["-c", script]), limit).expect("sh starts")
    }

    #[test]
    fn both_streams_and_the_status_come_back() {
        let output =
            shell("head -c 300000 /dev/zero; echo word >&2; exit 3", LONG).expect("an answer");
        assert_eq!((output.stdout.len(), output.status.code()), (300_000, Some(3)));
        assert_eq!(output.stderr, b"word\n");
    }

    #[test]
    fn a_program_that_does_not_end_has_no_answer() {
        assert!(shell("exec sleep 600", Duration::from_millis(50)).is_none());
        assert!(shell("sleep 600 & exit 0", Duration::from_millis(500)).is_none());
    }

    #[test]
    fn a_program_that_was_stopped_for_a_while_answers_when_it_goes_on() {
        let script = "(sleep 0.2; kill -CONT $$) & kill -STOP $$; echo on; wait";
        assert_eq!(shell(script, LONG).expect("an answer").stdout, b"on\n");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        assert!(output_within(&mut Command::new("/does/not/exist"), LONG).is_err());
    }
}
