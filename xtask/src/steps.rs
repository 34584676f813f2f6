//! The steps of a long task, announced one by one, each with its own time.

use std::time::Instant;

use anyhow::{Context, Result};

/// A task with a known number of steps.
pub struct Steps {
    total: usize,
    done: usize,
    start: Instant,
    skipped: Vec<String>,
}

impl Steps {
    /// A task without any step done; its clock starts now.
    pub fn new(total: usize) -> Self {
        Self { total, done: 0, start: Instant::now(), skipped: Vec::new() }
    }

    /// Performs the next step, and prints its title and its time.
    pub fn step<T>(&mut self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let place = format!("[{}/{}] {title}", self.done + 1, self.total);
        eprintln!("{place}");
        let start = Instant::now();
        let value = work().with_context(|| format!("{place}: failed, and nothing after it ran"))?;
        self.done += 1;
        eprintln!("{place}: {:.1} s\n", start.elapsed().as_secs_f64());
        Ok(value)
    }

    /// Records that something was not checked, and why; the reason is printed now and at the end.
    pub fn skip(&mut self, reason: &str) {
        eprintln!("skipped: {reason}");
        self.skipped.push(reason.to_owned());
    }

    /// Prints that all steps passed, and the reasons of skipped checks.
    pub fn finish(self) {
        eprintln!("{} steps passed in {:.1} s", self.done, self.start.elapsed().as_secs_f64());
        for reason in self.skipped {
            eprintln!("skipped: {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_step_is_named() {
        let mut steps = Steps::new(2);
        steps.step("first", || Ok(())).unwrap();
        let error = steps.step::<()>("second", || bail!("broken")).unwrap_err();
        assert_eq!(format!("{error:#}"), "[2/2] second: failed, and nothing after it ran: broken");
    }
}
