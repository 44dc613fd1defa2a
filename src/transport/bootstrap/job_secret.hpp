// Bootstrap: the secret that the user gave to all ranks of a job.
#pragma once

#include <string>

namespace gtopk::bootstrap {

/// Returns GTOPK_SECRET, or the contents of the file GTOPK_SECRET_FILE, without trailing newlines,
/// or "" if neither is set. Throws Error{kBootstrap} if it has fewer than 16 bytes, or the file is
/// unreadable or readable by others.
[[nodiscard]] std::string job_secret();

}  // namespace gtopk::bootstrap
