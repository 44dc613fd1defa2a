// Bootstrap: the secret that the user gave to all ranks of a job.
#pragma once

#include <string>

namespace gtopk::bootstrap {

/// GTOPK_SECRET, or what is in the file that GTOPK_SECRET_FILE names, less line ends; "" where
/// neither is set. Throws Error{kBootstrap} for less than 16 bytes, and for a file that cannot be
/// read, or can be by others.
[[nodiscard]] std::string job_secret();

}  // namespace gtopk::bootstrap
