// Transport over UCX: the process-wide part of UCX, checked before it is trusted.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <string>

#include "src/transport/ucx/config.hpp"

namespace gtopk::transport {

class UcxContext {
 public:
  /// Starts UCX. Throws Error{kUnsupported} if the loaded UCX is older than the headers, or needs
  /// more storage per request than a Request has; Error{kTransport} if UCX cannot start.
  explicit UcxContext(const UcxConfig& config);

  [[nodiscard]] ucp_context_h get() const { return context_.get(); }
  /// The library as text: "UCX 1.22.0 (/.../libucp.so.0)".
  [[nodiscard]] const std::string& library() const { return library_; }
  /// The size of UCX's own request, which lies in front of the pointer that is passed to UCX.
  [[nodiscard]] std::size_t request_size() const { return request_size_; }
  /// Whether UCX, with the transports it was given, can read and write memory of CUDA devices.
  [[nodiscard]] bool knows_cuda() const { return knows_cuda_; }
  void close() { context_.reset(); }
  /// Leaks the context without touching UCX, for a process forked from the one that made it.
  void abandon() { static_cast<void>(context_.release()); }

 private:
  struct Cleanup {
    void operator()(ucp_context_h context) const { ucp_cleanup(context); }
  };

  std::string library_;
  std::size_t request_size_ = 0;
  bool knows_cuda_ = false;
  std::unique_ptr<ucp_context, Cleanup> context_;
};

}  // namespace gtopk::transport
