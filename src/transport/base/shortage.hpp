// Transport, base: what this process has run out of. Found by trying, as libraries rarely say why
// something failed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace gtopk::transport {

/// Raises the soft limit of open files to the hard one, or to 2^20 where that is lower: some
/// programs try every number up to their limit when they start, and inherit it. Returns whether the
/// limit has changed.
bool raise_open_file_limit();

/// "this process has no file descriptors left (limit 128, ulimit -n)" if it cannot open `count`
/// more files, else empty. Opens and closes that many.
[[nodiscard]] std::string descriptor_shortage(std::size_t count);

/// Whatever this process is out of: descriptors, threads or memory; empty if nothing. For errors
/// whose cause is not known.
[[nodiscard]] std::string any_shortage();

/// Starts a thread with that name, of at most 15 characters. Throws Error{kTransport}, which names
/// the limits, if there can be no more threads.
[[nodiscard]] std::thread start_thread(const char* name, std::function<void()> run);

}  // namespace gtopk::transport
