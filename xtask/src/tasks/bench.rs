//! `cargo xtask bench`

use anyhow::Result;

use crate::bench::page::{self, Part};
use crate::bench::{self, Options};
use crate::tasks;

/// Builds, measures, prints the tables, and writes them into the documentation when asked to.
pub fn bench(options: &Options) -> Result<()> {
    if options.engines {
        tasks::build_launcher()?;
    } else {
        tasks::build()?;
    }
    let (part, measured) = if options.engines {
        (Part::Engines, bench::engines::measure(options)?.to_string())
    } else {
        (Part::Native, bench::measure(options)?.to_string())
    };
    println!("{measured}");
    if options.write {
        page::write(part, &measured)?;
    }
    Ok(())
}
