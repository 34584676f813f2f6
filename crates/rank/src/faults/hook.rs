//! Faults of gradient hooks, which do not fire or fire twice.

use std::ffi::c_void;

use zprobe_model::spec::Fault;

use super::Injected;
use crate::engine::hooks::{Hook, on_gradient};
use crate::shim::autograd::HookKind;

/// The hook for the engine, faulty if `fault` is a fault of hooks.
pub fn hook(fault: Injected, sound: Hook) -> Hook {
    match fault {
        Some(Fault::DeadHooks) => Hook { kind: HookKind::UnkeptAccumulator, ..sound },
        Some(Fault::HookFiresTwice) => Hook { callback: twice, ..sound },
        _ => sound,
    }
}

/// A callback with the effect of a hook that is registered twice.
extern "C" fn twice(context: *mut c_void, index: usize) {
    on_gradient(context, index);
    on_gradient(context, index);
}
