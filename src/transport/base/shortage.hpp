// Transport, base: finds out which resource this process has run out of. It tries each one, because
// libraries rarely say why something failed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace gtopk::transport {

/// Raises the soft limit of open files to the hard one, or to 2^20 if that is lower, because some
/// programs inherit it and try every number up to their limit when they start. Returns whether the
/// limit has changed.
bool raise_open_file_limit();

/// Returns "this process has no file descriptors left (limit 128, ulimit -n)" if the process cannot
/// open `count` more files, else an empty string. If that many are free, it opens one and closes
/// it.
[[nodiscard]] std::string descriptor_shortage(std::size_t count);

/// Says which resource this process has run out of: descriptors, threads or memory. Returns an
/// empty string if none. It is used for errors whose cause is unknown.
[[nodiscard]] std::string any_shortage();

/// Starts a thread with that name, which has at most 15 characters. Throws Error{kTransport},
/// naming the limits, if no more threads can be started.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> run);

}  // namespace gtopk::transport
