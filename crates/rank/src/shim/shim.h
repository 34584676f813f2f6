// Functions of libtorch that tch does not bind, as plain C.
//
// Every function that can fail returns a status (0 for success) or a pointer (null for failure);
// zp_last_error() then says what happened. No C++ exception crosses this boundary. A tensor is
// tch's `*mut C_tensor`, which is an `at::Tensor*`.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

struct zp_store;
struct zp_group;
struct zp_work;

extern "C" {

// Message of the calling thread's last failure. Valid until its next failure.
const char* zp_last_error();
// Release of the libtorch that this was compiled against, for example "2.11.0".
const char* zp_torch_version();
// Release of the libtorch that is loaded; empty if it does not say. Valid until the calling
// thread's next call.
const char* zp_loaded_release();

// --- memory (memory.cpp) ---

// Makes torch fill the memory that it hands out from now on with NaN, or the largest integer:
// torch.utils.deterministic.fill_uninitialized_memory. Operators without a deterministic kernel warn.
int zp_poison_memory();

// --- autograd (autograd.cpp) ---

// Walks the graph behind `loss` and writes to `reached[i]` whether it leads to an AccumulateGrad
// node of `params[i]`, and to `*nodes` how many such nodes there are in all.
int zp_graph_walk(
    const at::Tensor* loss,
    at::Tensor* const* params,
    size_t params_len,
    uint8_t* reached,
    size_t* nodes);

// Calls `callback(context, index)` each time a gradient has been accumulated into `param`. The
// callback runs on the thread that called backward, or on autograd's thread for the parameter's
// CUDA device while that one waits. Replaces an earlier hook of that parameter.
int zp_post_accumulate_grad_hook(
    const at::Tensor* param,
    void (*callback)(void* context, size_t index),
    void* context,
    size_t index);

// Attaches a hook to the AccumulateGrad node without keeping the node alive: only autograd's weak
// reference is left, so the node and its hook are gone when this returns. DeepSpeed's
// register_grad_hook has this effect with torch before 2.1.
int zp_unkept_accumulator_hook(
    const at::Tensor* param,
    void (*callback)(void* context, size_t index),
    void* context,
    size_t index);

// Makes `param.grad` undefined again, as `param.grad = None` does.
int zp_clear_grad(const at::Tensor* param);

// --- c10d (c10d.cpp) ---

// Joins the TCPStore at host:port. With `listen_fd` ≥ 0 this process hosts it on that listening
// socket.
zp_store* zp_store_join(
    const char* host,
    uint16_t port,
    int listen_fd,
    int64_t timeout_ms);
void zp_store_free(zp_store* store);
int zp_store_set(zp_store* store, const char* key, const uint8_t* data, size_t len);
int zp_store_delete(zp_store* store, const char* key);
// 1 if the key is there, 0 if not, -1 on failure.
int zp_store_has(zp_store* store, const char* key);
// Waits until all keys are there, then hands each value to `sink`.
int zp_store_wait_get(
    zp_store* store,
    const char* const* keys,
    size_t keys_len,
    int64_t timeout_ms,
    void (*sink)(void* context, size_t index, const uint8_t* data, size_t len),
    void* context);

// A Gloo process group over a network interface.
zp_group* zp_gloo_new(
    zp_store* store,
    int rank,
    int world_size,
    const char* interface,
    int64_t timeout_ms);
void zp_group_free(zp_group* group);
// Each of these starts an operation, for which zp_work_wait must be called once; null on failure. The
// tensors are kept until then.
zp_work* zp_all_reduce_sum(zp_group* group, const at::Tensor* tensor);
zp_work* zp_reduce_sum(zp_group* group, const at::Tensor* tensor, int root);
zp_work* zp_reduce_scatter_sum(
    zp_group* group,
    const at::Tensor* output,
    const at::Tensor* input);
zp_work* zp_all_gather(zp_group* group, const at::Tensor* output, const at::Tensor* input);
// Waits until the operation has completed on this rank, and frees it.
int zp_work_wait(zp_work* work);

} // extern "C"
