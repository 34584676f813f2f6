//! zprobe's own engine; its program is `crates/rank/src`.

mod axes;

use super::{EngineFacts, Project};
use zprobe_model::spec::Point::{
    Accumulator, BeforeStep, LocalGradient, MasterWeights, OptimizerInput, Parameters, Reduced,
};
use zprobe_model::spec::{Dataflow, Offload, Point, RunSpec};

/// The advice if the program of the native engine is not installed.
pub const INSTALL: &str = concat!(
    "install the wheel zprobe-native ",
    env!("CARGO_PKG_VERSION"),
    " next to torch 2.11 (docs/install.md), or build zprobe from source with `cargo xtask build`"
);

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "zprobe's own engine",
    project: Project::Plain,
    python: None,
    unwatched: None,
    axes: axes::axes,
    function: |spec, _, point| function(spec, point),
    parameters_in: |spec| spec.dtype,
    repro: |_| {
        Err("the native engine is part of zprobe, and the script must run without zprobe"
            .to_owned())
    },
};

/// The source file that produces the buffer at a point; `None` for the local gradient, which autograd computes.
fn function(spec: &RunSpec, point: Point) -> Option<&'static str> {
    Some(match point {
        LocalGradient => return None,
        Accumulator if spec.dataflow() == Some(Dataflow::IpgBucket) => {
            "crates/rank/src/engine/ipg.rs"
        }
        Accumulator => "crates/rank/src/engine/accumulator.rs",
        Reduced => "crates/rank/src/engine/reduction.rs",
        BeforeStep if spec.offload == Offload::Cpu => "crates/rank/src/engine/offload.rs",
        BeforeStep => "crates/rank/src/engine/reduction.rs",
        OptimizerInput => "crates/rank/src/engine/optimizer.rs",
        MasterWeights => "crates/rank/src/engine/inner.rs",
        Parameters => "crates/rank/src/engine/parameters.rs",
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use zprobe_model::spec::SpecRequest;

    #[test]
    fn files_of_the_native_engine_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for dataflow in Dataflow::ALL {
            let request = SpecRequest { dataflow: Some(*dataflow), ..SpecRequest::default() };
            let spec = request.resolve().unwrap();
            for file in Point::ALL.iter().filter_map(|point| function(&spec, *point)) {
                assert!(root.join(file).is_file(), "{file}");
            }
        }
    }
}
