#pragma once

namespace gloo::transport {
class Device;
// Complete, because c10d holds it in a unique_ptr inside an inline destructor.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};
} // namespace gloo::transport
