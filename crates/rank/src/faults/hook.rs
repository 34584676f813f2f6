//! Gradient hooks that do not fire, or fire too often.

use std::ffi::c_void;

use zprobe_model::spec::Fault;

use super::Injected;
use crate::engine::hooks::{Hook, on_gradient};
use crate::shim::autograd::HookKind;

/// The hook to register.
pub fn hook(fault: Injected, sound: Hook) -> Hook {
    match fault {
        Some(Fault::DeadHooks) => Hook { kind: HookKind::UnkeptAccumulator, ..sound },
        Some(Fault::HookFiresTwice) => Hook { callback: twice, ..sound },
        _ => sound,
    }
}

/// A hook that was registered twice.
extern "C" fn twice(context: *mut c_void, index: usize) {
    on_gradient(context, index);
    on_gradient(context, index);
}
