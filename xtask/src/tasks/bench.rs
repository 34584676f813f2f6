//! `cargo xtask bench`

use anyhow::Result;

use crate::bench::{self, Options};
use crate::tasks;

/// Builds, measures, prints the tables, and writes them into the documentation when asked to.
pub fn bench(options: &Options) -> Result<()> {
    tasks::build()?;
    let measured = bench::measure(options)?.to_string();
    println!("{measured}");
    if options.write {
        bench::PAGE.write(&measured)?;
    }
    Ok(())
}
