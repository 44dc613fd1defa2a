#include "tests/support/program.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>

#include "gtopk/error.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"

namespace gtopk::test {
namespace {

std::string text_of(int file) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0;
       (got = pread(file, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

/// The write end of a pipe whose read end is closed.
int unread_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    std::abort();
  }
  close(ends[0]);
  return ends[1];
}

}  // namespace

Program::Program(const std::string& path, const std::vector<std::string>& arguments,
                 const Variables& environment, bool read)
    : out_(read ? memfd_create("stdout", MFD_CLOEXEC) : unread_pipe()),
      err_(memfd_create("stderr", MFD_CLOEXEC)) {
  process_ = fork();
  if (process_ != 0) {
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out_, STDOUT_FILENO);
  dup2(err_, STDERR_FILENO);
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<std::string> words{path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  _exit(127);
}

Program::~Program() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  if (out_ >= 0) {
    close(out_);
  }
  if (err_ >= 0) {
    close(err_);
  }
}

std::string Program::out() const { return text_of(out_); }

Ended Program::join() {
  int status = 0;
  if (waitpid(std::exchange(process_, -1), &status, 0) < 0) {
    std::abort();
  }
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = text_of(out_),
          .err = text_of(err_)};
}

std::uint16_t free_port() {
  constexpr int kFirst = 10'000;
  int handed_out = 0;  // from here on
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> handed_out;
  std::random_device random;
  for (int in_use = 0; in_use < 1000 && handed_out > kFirst;) {
    std::uniform_int_distribution<int> below(kFirst, handed_out - 1);
    try {
      return bootstrap::RendezvousListener(
                 {.host = "127.0.0.1", .port = static_cast<std::uint16_t>(below(random))})
          .port();
    } catch (const Error&) {
      ++in_use;
    }
  }
  return bootstrap::RendezvousListener({.host = "127.0.0.1", .port = 0}).port();
}

}  // namespace gtopk::test
