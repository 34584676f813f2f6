//! Makes a run once, or several times as repeats.

use std::path::Path;

use anyhow::{Result, bail};

use super::order::Order;
use super::queue::Queue;
use super::runner::Runner;
use zprobe_model::trace::repeat_dir;

/// Makes a run in `run_dir`, or all its repeats, each in a directory of its own there. Returns false if the user has
/// interrupted a run, which is then the last one.
pub fn all(
    runner: &mut Runner<'_>,
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    queue: &Queue,
) -> Result<bool> {
    if order.repeats == 1 {
        return runner.run(&order.spec, run_id, run_dir, None, &mut |_| {});
    }
    for number in 0..order.repeats {
        let run_id = format!("{run_id}-{number}");
        let dir = repeat_dir(run_dir, number);
        let mut make = || runner.run(&order.spec, &run_id, &dir, Some(number), &mut |_| {});
        let made = match queue.job("repeats", &mut make) {
            Ok(made) => made,
            Err(reason) if number == 0 => bail!("{reason}"),
            // The run ends at once, and its trace says that the user has ended it.
            Err(_) => make(),
        };
        match made {
            Ok(true) if runner.has_lost() => {
                let left = order.repeats - number - 1;
                if left > 0 {
                    queue.say(format_args!(
                        "warning: {left} of {} repeats are not made, because a process of the job is lost",
                        order.repeats
                    ));
                }
                break;
            }
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if number == 0 => return Err(error),
            // The earlier repeats are kept.
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                queue.say(format_args!("warning: repeat {number} could not be made: {error:#}"));
                break;
            }
        }
    }
    Ok(true)
}
