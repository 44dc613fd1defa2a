// Torch backend: handles forked children. Threads do not survive the fork, and the network belongs
// to the parent, so the child leaks the objects of both that it inherited.
#pragma once

#include <mutex>

namespace gtopk::torch_backend {

/// The number of forks between the process that loaded this module and this one. Makes no system
/// call.
[[nodiscard]] int forks();

/// Throws Error{kInvalidArgument} if this process was forked since forks() returned `then`.
void check_not_forked_since(int then);

/// The mutex that guards the state shared by all process groups of the process. It is held across
/// every fork, so that in the child it is free and the state is consistent.
[[nodiscard]] std::mutex& process_mutex();

}  // namespace gtopk::torch_backend
