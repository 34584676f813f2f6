#pragma once

namespace gloo::transport {
class Device;
// This class must be complete, because an inline destructor of c10d destroys a unique_ptr to it.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};
} // namespace gloo::transport
