//! Gradient hooks, which autograd calls as soon as a parameter's gradient is complete.

use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

use anyhow::{Error, Result};
use tch::Tensor;

use super::flow::GradientFlow;
use crate::shim::autograd::{HookKind, register_hook};

/// A gradient flow that the engine shares with the hooks. The hooks use the flow during a backward pass.
pub type SharedFlow = Rc<RefCell<Box<dyn GradientFlow>>>;

/// A hook to register on a parameter.
#[derive(Clone, Copy)]
pub struct Hook {
    /// The kind of the hook, which decides how the hook is attached.
    pub kind: HookKind,
    /// The function that autograd calls with the address of the hooks' state and the index of the parameter.
    pub callback: extern "C" fn(*mut c_void, usize),
}

impl Hook {
    /// A hook that passes the gradient to the flow.
    pub const TO_THE_FLOW: Self =
        Self { kind: HookKind::PostAccumulateGrad, callback: on_gradient };
}

/// The hooks on all trainable parameters.
pub struct Hooks {
    /// The state of the hooks. Autograd holds the address of the state.
    state: Rc<HookState>,
}

struct HookState {
    flow: SharedFlow,
    /// The number of times that each parameter's hook fired in this backward pass.
    fired: RefCell<Vec<u32>>,
    failure: RefCell<Option<Error>>,
}

impl Hooks {
    /// Attaches `hook` to every trainable parameter.
    pub fn attach(flow: &SharedFlow, params: &[Tensor], hook: Hook) -> Result<Self> {
        let fired = RefCell::new(vec![0; params.len()]);
        let state =
            Rc::new(HookState { flow: Rc::clone(flow), fired, failure: RefCell::default() });
        for (index, param) in params.iter().enumerate().filter(|(_, p)| p.requires_grad()) {
            let context = Rc::as_ptr(&state).cast_mut().cast();
            // SAFETY: the state lives as long as the engine, which runs every backward pass, and its address does not
            // change; callbacks expect exactly this type.
            unsafe { register_hook(param, hook.kind, hook.callback, context, index)? };
        }
        Ok(Self { state })
    }

    /// Runs the backward pass, and returns how often each parameter's hook fired.
    pub fn backward(&self, loss: &Tensor) -> Result<Vec<u32>> {
        self.state.fired.borrow_mut().fill(0);
        loss.f_backward()?;
        match self.state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.state.fired.borrow().clone()),
        }
    }
}

/// The callback for autograd, which passes a gradient to the flow.
///
/// For CUDA tensors autograd calls the function on its own thread while the thread that called backward waits, so
/// nothing else uses the state. Errors stay in the state until backward has returned.
pub extern "C" fn on_gradient(context: *mut c_void, index: usize) {
    // SAFETY: `context` is the address that `Hooks::attach` registered.
    let state = unsafe { &*context.cast::<HookState>() };
    state.fired.borrow_mut()[index] += 1;
    let mut failure = state.failure.borrow_mut();
    if failure.is_none() {
        *failure = state.flow.borrow_mut().arrived(index).err();
    }
}
