#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  // Defined inside libtorch_cpu.
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
