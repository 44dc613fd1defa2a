// Torch backend: what a forked child inherits. Threads do not survive the fork, and the network
// belongs to the parent, so the child leaks what it inherited of both.
#pragma once

#include <mutex>

namespace gtopk::torch_backend {

/// The number of forks between the process that loaded this module and this one. Makes no system
/// call.
[[nodiscard]] int forks();

/// Throws Error{kInvalidArgument} if this process was forked since forks() returned `then`.
void check_not_forked_since(int then);

/// Guards what all process groups of the process share. It is held across every fork, so that in
/// the child it is free, and what it guards is consistent.
[[nodiscard]] std::mutex& process_mutex();

}  // namespace gtopk::torch_backend
