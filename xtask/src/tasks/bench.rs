//! `cargo xtask bench`

use anyhow::Result;

use crate::bench::{self, Options};
use crate::tasks;

/// Builds, measures, prints the tables, and writes them into the documentation when asked to.
pub fn bench(options: &Options) -> Result<()> {
    if options.engines {
        tasks::build_launcher()?;
    } else {
        tasks::build()?;
    }
    let (page, measured) = if options.engines {
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
