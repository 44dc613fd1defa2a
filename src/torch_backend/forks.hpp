// Torch backend: what a fork leaves to the child. Threads do not survive it, and the network
// belongs to the parent: a child leaks what it inherited of both.
#pragma once

#include <mutex>

namespace gtopk::torch_backend {

/// How many forks lie between the process that loaded this module and this one. No system call.
[[nodiscard]] int forks();

/// Throws Error{kInvalidArgument} in a process that was forked off since `then`.
void check_not_forked_since(int then);

/// Guards what all process groups of the process share. Held across every fork, so that the child
/// finds it free, and whole what it guards.
[[nodiscard]] std::mutex& process_mutex();

}  // namespace gtopk::torch_backend
