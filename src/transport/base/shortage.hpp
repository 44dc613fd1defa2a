// Transport, base: what this process has run out of. It is found by trying, as libraries rarely say
// why something failed.
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

/// "this process has no file descriptors left (limit 128, ulimit -n)" if it cannot open `count`
/// more files, else empty. If that many are free, opens one and closes it.
[[nodiscard]] std::string descriptor_shortage(std::size_t count);

/// What this process is out of: descriptors, threads or memory; empty if nothing. For errors whose
/// cause is unknown.
[[nodiscard]] std::string any_shortage();

/// Starts a thread with that name, of at most 15 characters. Throws Error{kTransport}, naming the
/// limits, if no more threads can be started.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> run);

}  // namespace gtopk::transport
