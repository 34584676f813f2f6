//! The task `cargo xtask bench`.

use anyhow::Result;

use crate::bench::{self, Options};
use crate::cargo::{self, cargo};
use crate::tasks;

/// Builds, measures, prints the tables, and writes them into the documentation if `--write` is given.
pub fn bench(options: &Options) -> Result<()> {
    if options.scale {
        cargo::run(cargo(
            "build --release --package zprobe --bin zprobe --example simulate-trace",
        )?)?;
    } else if options.engines || options.exec {
        tasks::build_launcher()?;
    } else {
        tasks::build()?;
    }
    let (page, measured) = if options.scale {
        (bench::SCALE_PAGE, bench::scale::measure(options)?.to_string())
    } else if options.suite {
        (bench::SUITE_PAGE, bench::suite::measure(options)?.to_string())
    } else if options.native {
        (bench::NATIVE_PAGE, bench::native::measure(options)?.to_string())
    } else if options.exec {
        (bench::EXEC_PAGE, bench::exec::measure(options)?.to_string())
    } else if options.engines {
        (bench::ENGINES_PAGE, bench::engines::measure(options)?.to_string())
    } else {
        (bench::PAGE, bench::measure(options)?.to_string())
    };
    println!("{measured}");
    if options.write {
        page.write(&measured)?;
    }
    Ok(())
}
