#include "src/transport/bootstrap/job_secret.hpp"

#include <sys/stat.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr const char* kText = "GTOPK_SECRET";
constexpr const char* kFile = "GTOPK_SECRET_FILE";
constexpr std::size_t kFewest = 16;

std::string value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string read(const std::string& path) {
  struct stat status {};
  std::ifstream file(path, std::ios::binary);
  if (!file || stat(path.c_str(), &status) != 0) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{} is '{}', which cannot be read", kFile, path));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{} is '{}', whose mode is {:o}: expected one that only its owner can "
                            "read (chmod 600)",
                            kFile, path, status.st_mode & 0777U));
  }
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.pop_back();
  }
  return text;
}

}  // namespace

std::string job_secret() {
  const std::string path = value_of(kFile);
  const char* const from = path.empty() ? kText : kFile;
  std::string secret = path.empty() ? value_of(kText) : read(path);
  const bool none = secret.empty() && path.empty();
  if (!none && secret.size() < kFewest) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{} gives a secret of {} bytes: expected at least {}", from,
                            secret.size(), kFewest));
  }
  return secret;
}

}  // namespace gtopk::bootstrap
