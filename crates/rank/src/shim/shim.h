// A plain C interface to functions of libtorch that tch does not bind.
//
// Every function that can fail returns a status (0 for success) or a pointer (null for failure);
// zp_last_error() then returns the message. No C++ exception crosses this boundary. Tensors are
// tch's `*mut C_tensor`, which are `at::Tensor*`.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

struct zp_store;
struct zp_group;
struct zp_work;

extern "C" {

// The message of the calling thread's last failure; valid until the thread's next failure.
const char* zp_last_error();
// The release of the libtorch that the shim was compiled against, for example "2.11.0".
const char* zp_torch_version();
// The release of the loaded libtorch; empty if its build settings do not contain it. Valid until the
// calling thread's next call of this function.
const char* zp_loaded_release();

// --- memory (memory.cpp) ---

// Makes torch fill newly allocated memory with NaN, or the largest integer, from now on (like
// torch.utils.deterministic.fill_uninitialized_memory). Operators without a deterministic kernel warn.
int zp_poison_memory();

// --- autograd (autograd.cpp) ---

// Walks the autograd graph of `loss`. Sets `reached[i]` to 1 if the graph has an AccumulateGrad node of
// `params[i]`, else to 0, and `*nodes` to the number of all AccumulateGrad nodes.
int zp_graph_walk(
    const at::Tensor* loss,
    at::Tensor* const* params,
    size_t params_len,
    uint8_t* reached,
    size_t* nodes);

// Calls `callback(context, index)` each time a gradient has been accumulated into `param`. The
// callback runs on the thread that called backward, or on autograd's thread for the parameter's
// CUDA device while the calling thread waits. Replaces an earlier hook of the parameter.
int zp_post_accumulate_grad_hook(
    const at::Tensor* param,
    void (*callback)(void* context, size_t index),
    void* context,
    size_t index);

// Attaches a hook to the AccumulateGrad node without keeping the node alive. Only autograd's weak
// reference is left, so node and hook are destroyed before the function returns. DeepSpeed's
// register_grad_hook has this effect with torch before 2.1.
int zp_unkept_accumulator_hook(
    const at::Tensor* param,
    void (*callback)(void* context, size_t index),
    void* context,
    size_t index);

// Makes `param.grad` undefined again, as `param.grad = None` does.
int zp_clear_grad(const at::Tensor* param);

// --- c10d (c10d.cpp) ---

// Connects to the TCPStore at host:port. With `listen_fd` ≥ 0 this process also hosts the store on that
// listening socket.
zp_store* zp_store_join(
    const char* host,
    uint16_t port,
    int listen_fd,
    int64_t timeout_ms);
void zp_store_free(zp_store* store);
int zp_store_set(zp_store* store, const char* key, const uint8_t* data, size_t len);
int zp_store_delete(zp_store* store, const char* key);
// Returns 1 if the key exists, 0 if not, and -1 on failure.
int zp_store_has(zp_store* store, const char* key);
// Waits until all keys exist, then passes each value to `sink`.
int zp_store_wait_get(
    zp_store* store,
    const char* const* keys,
    size_t keys_len,
    int64_t timeout_ms,
    void (*sink)(void* context, size_t index, const uint8_t* data, size_t len),
    void* context);

// Creates a Gloo process group on a network interface.
zp_group* zp_gloo_new(
    zp_store* store,
    int rank,
    int world_size,
    const char* interface,
    int64_t timeout_ms);
void zp_group_free(zp_group* group);
// Each of the next four functions starts an operation, and returns null on failure. zp_work_wait must be
// called once for the operation, which keeps its tensors alive until then.
zp_work* zp_all_reduce_sum(zp_group* group, const at::Tensor* tensor);
zp_work* zp_reduce_sum(zp_group* group, const at::Tensor* tensor, int root);
zp_work* zp_reduce_scatter_sum(
    zp_group* group,
    const at::Tensor* output,
    const at::Tensor* input);
zp_work* zp_all_gather(zp_group* group, const at::Tensor* output, const at::Tensor* input);
// Waits until the operation has completed on this rank, and frees the operation.
int zp_work_wait(zp_work* work);

} // extern "C"
