//! Gradient hooks: what happens to a gradient as soon as autograd has delivered it.

use std::cell::{RefCell, RefMut};
use std::ffi::c_void;
use std::rc::Rc;

use anyhow::{Error, Result};
use tch::Tensor;

use crate::shim::autograd::{HookKind, register_hook};

/// What gradients are handed to.
pub trait GradientSink {
    /// A parameter's gradient of the backward that runs is complete.
    fn arrived(&mut self, param: usize) -> Result<()>;
}

/// A sink with a hook on every trainable parameter.
pub struct Hooked<S: GradientSink> {
    /// The hooks hold its address: autograd calls them in the middle of [`Hooked::backward`].
    state: Rc<RefCell<State<S>>>,
}

struct State<S> {
    sink: S,
    fired: Vec<u32>,
    /// How often each hook is registered.
    registrations: u32,
    failure: Option<Error>,
}

impl<S: GradientSink> Hooked<S> {
    /// Attaches the hooks.
    pub fn new(sink: S, params: &[Tensor], kind: HookKind, registrations: u32) -> Result<Self> {
        let fired = vec![0; params.len()];
        let state = Rc::new(RefCell::new(State { sink, fired, registrations, failure: None }));
        for (index, param) in params.iter().enumerate().filter(|(_, p)| p.requires_grad()) {
            let context = Rc::as_ptr(&state).cast_mut().cast();
            // SAFETY: the state lives as long as the engine, which runs every backward, and its
            // address does not change; `on_gradient::<S>` expects exactly this type.
            unsafe { register_hook(param, kind, on_gradient::<S>, context, index)? };
        }
        Ok(Self { state })
    }

    /// The sink, between backwards.
    pub fn sink(&self) -> RefMut<'_, S> {
        RefMut::map(self.state.borrow_mut(), |state| &mut state.sink)
    }

    /// Runs backward; how often each parameter's hook fired.
    pub fn backward(&self, loss: &Tensor) -> Result<Vec<u32>> {
        self.state.borrow_mut().fired.fill(0);
        loss.f_backward()?;
        let mut state = self.state.borrow_mut();
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(state.fired.clone()),
        }
    }
}

/// Runs inside autograd, for CUDA tensors on a thread of its own, while the thread that called
/// backward waits: nobody else has the state then. Errors wait in it until backward has returned.
extern "C" fn on_gradient<S: GradientSink>(context: *mut c_void, index: usize) {
    // SAFETY: `context` is the address that `Hooked::new` registered.
    let state = unsafe { &*context.cast::<RefCell<State<S>>>() };
    let mut state = state.borrow_mut();
    for _ in 0..state.registrations {
        state.fired[index] += 1;
        if state.failure.is_none() {
            state.failure = state.sink.arrived(index).err();
        }
    }
}
