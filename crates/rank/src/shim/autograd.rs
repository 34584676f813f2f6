//! Access to the autograd graph: the parameters that a loss reaches, and hooks for complete gradients.

use std::ffi::c_void;

use anyhow::Result;
use tch::Tensor;

use super::{TensorPtr, check, ptr};

unsafe extern "C" {
    fn zp_graph_walk(
        loss: TensorPtr,
        params: *const TensorPtr,
        params_len: usize,
        reached: *mut u8,
        nodes: *mut usize,
    ) -> i32;
    fn zp_post_accumulate_grad_hook(
        param: TensorPtr,
        callback: extern "C" fn(*mut c_void, usize),
        context: *mut c_void,
        index: usize,
    ) -> i32;
    fn zp_unkept_accumulator_hook(
        param: TensorPtr,
        callback: extern "C" fn(*mut c_void, usize),
        context: *mut c_void,
        index: usize,
    ) -> i32;
    fn zp_clear_grad(param: TensorPtr) -> i32;
}

/// The leaves of the autograd graph of a loss.
pub struct Graph {
    /// The number of all `AccumulateGrad` nodes.
    pub accumulate_grad_nodes: usize,
    /// The indices of the parameters that the loss reaches.
    pub params: Vec<usize>,
}

/// Walks the autograd graph of `loss`.
pub fn walk_graph(loss: &Tensor, params: &[Tensor]) -> Result<Graph> {
    let pointers: Vec<TensorPtr> = params.iter().map(ptr).collect();
    let mut reached = vec![0u8; params.len()];
    let mut nodes = 0;
    // SAFETY: all pointers refer to live tensors; `reached` has room for `params.len()` flags.
    check(unsafe {
        zp_graph_walk(
            ptr(loss),
            pointers.as_ptr(),
            pointers.len(),
            reached.as_mut_ptr(),
            &raw mut nodes,
        )
    })?;
    let params = (0..params.len()).filter(|&i| reached[i] != 0).collect();
    Ok(Graph { accumulate_grad_nodes: nodes, params })
}

/// The kind of a gradient hook, which decides how the hook is attached to its parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HookKind {
    /// A hook of `register_post_accumulate_grad_hook`, which the parameter owns.
    PostAccumulateGrad,
    /// A hook on an `AccumulateGrad` node that nothing keeps alive: the node and the hook are freed at once, so the
    /// hook never fires.
    UnkeptAccumulator,
}

/// Calls `callback(context, index)` whenever `param` has received a gradient. The call is on the thread that called
/// backward, or for a CUDA tensor on autograd's device thread, while the calling thread waits.
///
/// # Safety
/// `context` must be of the type that `callback` expects, and stay valid until the last backward pass through this
/// parameter has returned.
pub unsafe fn register_hook(
    param: &Tensor,
    kind: HookKind,
    callback: extern "C" fn(*mut c_void, usize),
    context: *mut c_void,
    index: usize,
) -> Result<()> {
    let register = match kind {
        HookKind::PostAccumulateGrad => zp_post_accumulate_grad_hook,
        HookKind::UnkeptAccumulator => zp_unkept_accumulator_hook,
    };
    // SAFETY: `param` is a live tensor; the caller guarantees that `callback` and `context` are valid.
    check(unsafe { register(ptr(param), callback, context, index) })
}

/// Makes the parameter's gradient undefined, as `param.grad = None` does.
pub fn clear_grad(param: &Tensor) -> Result<()> {
    // SAFETY: `param` is a live tensor.
    check(unsafe { zp_clear_grad(ptr(param)) })
}
