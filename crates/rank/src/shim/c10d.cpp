#include "shim.h"

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "guard.h"

struct zp_store {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct zp_group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

struct zp_work {
  c10::intrusive_ptr<c10d::Work> work;
  // The tensors are kept here, because c10d keeps them alive only for some operations.
  std::vector<at::Tensor> tensors;
};

zp_store* zp_store_join(
    const char* host,
    uint16_t port,
    int listen_fd,
    int64_t timeout_ms) {
  return zp::guarded<zp_store*>(nullptr, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listen_fd >= 0;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    if (listen_fd >= 0) {
      options.masterListenFd = listen_fd;
    }
    return new zp_store{c10::make_intrusive<c10d::TCPStore>(std::string(host), options)};
  });
}

void zp_store_free(zp_store* store) {
  delete store;
}

int zp_store_set(zp_store* store, const char* key, const uint8_t* data, size_t len) {
  return zp::guarded(-1, [&] {
    store->store->set(key, std::vector<uint8_t>(data, data + len));
    return 0;
  });
}

int zp_store_delete(zp_store* store, const char* key) {
  return zp::guarded(-1, [&] {
    store->store->deleteKey(key);
    return 0;
  });
}

int zp_store_has(zp_store* store, const char* key) {
  return zp::guarded(-1, [&] { return store->store->check({key}) ? 1 : 0; });
}

int zp_store_wait_get(
    zp_store* store,
    const char* const* keys,
    size_t keys_len,
    int64_t timeout_ms,
    void (*sink)(void*, size_t, const uint8_t*, size_t),
    void* context) {
  return zp::guarded(-1, [&] {
    std::vector<std::string> names(keys, keys + keys_len);
    store->store->wait(names, std::chrono::milliseconds(timeout_ms));
    auto values = store->store->multiGet(names);
    for (size_t i = 0; i < values.size(); ++i) {
      sink(context, i, values[i].data(), values[i].size());
    }
    return 0;
  });
}

zp_group* zp_gloo_new(
    zp_store* store,
    int rank,
    int world_size,
    const char* interface,
    int64_t timeout_ms) {
  return zp::guarded<zp_group*>(nullptr, [&] {
    auto options =
        c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store->store);
    return new zp_group{c10::make_intrusive<c10d::ProcessGroupGloo>(
        prefixed, rank, world_size, options)};
  });
}

void zp_group_free(zp_group* group) {
  delete group;
}

zp_work* zp_all_reduce_sum(zp_group* group, const at::Tensor* tensor) {
  return zp::guarded<zp_work*>(nullptr, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    return new zp_work{group->gloo->allreduce(tensors), tensors};
  });
}

zp_work* zp_reduce_sum(zp_group* group, const at::Tensor* tensor, int root) {
  return zp::guarded<zp_work*>(nullptr, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::ReduceOptions options;
    options.rootRank = root;
    return new zp_work{group->gloo->reduce(tensors, options), tensors};
  });
}

zp_work* zp_reduce_scatter_sum(
    zp_group* group,
    const at::Tensor* output,
    const at::Tensor* input) {
  return zp::guarded<zp_work*>(nullptr, [&] {
    at::Tensor out = *output;
    at::Tensor in = *input;
    return new zp_work{group->gloo->_reduce_scatter_base(out, in), {out, in}};
  });
}

zp_work* zp_all_gather(zp_group* group, const at::Tensor* output, const at::Tensor* input) {
  return zp::guarded<zp_work*>(nullptr, [&] {
    at::Tensor out = *output;
    at::Tensor in = *input;
    return new zp_work{group->gloo->_allgather_base(out, in), {out, in}};
  });
}

int zp_work_wait(zp_work* work) {
  std::unique_ptr<zp_work> owned(work);
  return zp::guarded(-1, [&] {
    owned->work->wait();
    return 0;
  });
}
