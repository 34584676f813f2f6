#include "shim.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/Version.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include "guard.h"

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;

namespace {

struct Callback {
  void (*function)(void*, size_t);
  void* context;
  size_t index;

  void operator()() const {
    function(context, index);
  }
};

struct PostAccumulateHook final : torch::autograd::PostAccumulateGradHook {
  explicit PostAccumulateHook(Callback callback) : callback(callback) {}
  void operator()(const Variable&) override {
    callback();
  }
  Callback callback;
};

struct NodeHook final : torch::autograd::FunctionPostHook {
  explicit NodeHook(Callback callback) : callback(callback) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    callback();
    return outputs;
  }
  Callback callback;
};

} // namespace

const char* zp_last_error() {
  return zp::last_error().c_str();
}

const char* zp_torch_version() {
  return TORCH_VERSION;
}

const char* zp_loaded_release() {
  thread_local std::string release;
  release = zp::guarded<std::string>("", [] {
    const std::string key = "TORCH_VERSION=";
    const std::string config = at::show_config();
    const auto start = config.find(key);
    if (start == std::string::npos) {
      return std::string();
    }
    const auto value = start + key.size();
    return config.substr(value, config.find(',', value) - value);
  });
  return release.c_str();
}

int zp_graph_walk(
    const at::Tensor* loss,
    at::Tensor* const* params,
    size_t params_len,
    uint8_t* reached,
    size_t* nodes) {
  return zp::guarded(-1, [&] {
    std::unordered_map<const c10::TensorImpl*, size_t> index_of;
    for (size_t i = 0; i < params_len; ++i) {
      index_of.emplace(params[i]->unsafeGetTensorImpl(), i);
      reached[i] = 0;
    }
    *nodes = 0;
    std::unordered_set<const Node*> seen;
    std::vector<Node*> open;
    auto visit = [&](Node* node) {
      if (node != nullptr && seen.insert(node).second) {
        open.push_back(node);
      }
    };
    visit(loss->grad_fn().get());
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (auto* leaf = dynamic_cast<AccumulateGrad*>(node)) {
        ++*nodes;
        auto found = index_of.find(leaf->variable.unsafeGetTensorImpl());
        if (found != index_of.end()) {
          reached[found->second] = 1;
        }
      }
      for (const auto& edge : node->next_edges()) {
        visit(edge.function.get());
      }
    }
    return 0;
  });
}

int zp_post_accumulate_grad_hook(
    const at::Tensor* param,
    void (*callback)(void*, size_t),
    void* context,
    size_t index) {
  return zp::guarded(-1, [&] {
    torch::autograd::impl::set_post_acc_grad_hooks(
        *param, std::make_unique<PostAccumulateHook>(Callback{callback, context, index}));
    return 0;
  });
}

int zp_unkept_accumulator_hook(
    const at::Tensor* param,
    void (*callback)(void*, size_t),
    void* context,
    size_t index) {
  return zp::guarded(-1, [&] {
    auto node = torch::autograd::impl::grad_accumulator(*param);
    node->add_post_hook(std::make_unique<NodeHook>(Callback{callback, context, index}));
    return 0;
  });
}

int zp_clear_grad(const at::Tensor* param) {
  return zp::guarded(-1, [&] {
    param->mutable_grad() = at::Tensor();
    return 0;
  });
}
