//! The user's own script under `zprobe exec`: the engine is whatever trains in the script.

use super::{Axes, EngineFacts, Project};
use zprobe_model::spec::Dtype;

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "the script",
    project: Project::Plain,
    python: None,
    unwatched: Some("zprobe does not watch the collectives of a script"),
    axes: Axes::default,
    function: |_, _, _| None,
    parameters_in: |_| Dtype::Fp32,
    repro: |_| Err("the script is the user's own".to_owned()),
};
