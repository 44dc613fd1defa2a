// Tests, standalone: a bootstrap that gtopk does not know: a directory of files that all ranks see.
// A value is a file that is moved into place whole; a counter is a file that is locked while it is
// increased. It uses only gtopk's public headers.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/error.hpp"
#include "gtopk/key_value_store.hpp"

class FileStore final : public gtopk::KeyValueStore {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(std::string_view key, std::string_view value) override {
    // Only this caller writes under that name.
    const auto whole = path("new." + std::to_string(gettid()), key);
    std::ofstream file(whole, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    file.close();
    std::error_code failed;
    std::filesystem::rename(whole, path("value", key), failed);
    if (!file || failed) {
      throw error("cannot write", key);
    }
  }

  std::optional<std::string> find(std::string_view key, std::chrono::nanoseconds at_most) override {
    const auto end = std::chrono::steady_clock::now() + at_most;
    // From before the first look, so that no value comes unnoticed between a look and a wait.
    const Watch watch(folder_);
    if (!watch.works()) {
      throw error("cannot watch for", key);
    }
    for (;;) {
      std::ifstream file(path("value", key), std::ios::binary);
      if (file) {
        return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
      const auto rest = end - std::chrono::steady_clock::now();
      if (rest <= std::chrono::nanoseconds::zero()) {
        return std::nullopt;
      }
      watch.wait(rest);
    }
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const int file = open(path("counter", key).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
      throw error("cannot open", key);
    }
    std::array<char, 32> text{};
    bool good = flock(file, LOCK_EX) == 0;
    const ssize_t length = good ? pread(file, text.data(), text.size(), 0) : -1;
    std::int64_t sum = 0;
    std::from_chars(text.data(), text.data() + std::max<ssize_t>(length, 0), sum);
    sum += delta;
    const std::string written = std::to_string(sum) + '\n';
    good = length >= 0 &&
           pwrite(file, written.data(), written.size(), 0) == static_cast<ssize_t>(written.size());
    close(file);
    if (!good) {
      throw error("cannot add to", key);
    }
    return sum;
  }

  void remove(std::string_view key) override {
    std::error_code ignored;
    std::filesystem::remove(path("value", key), ignored);
    std::filesystem::remove(path("counter", key), ignored);
  }

 private:
  /// Tells when a file is moved into the folder.
  class Watch {
   public:
    explicit Watch(const std::filesystem::path& folder)
        : descriptor_(inotify_init1(IN_CLOEXEC)),
          works_(descriptor_ >= 0 &&
                 inotify_add_watch(descriptor_, folder.c_str(), IN_MOVED_TO) >= 0) {}
    ~Watch() {
      if (descriptor_ >= 0) {
        close(descriptor_);
      }
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    [[nodiscard]] bool works() const { return works_; }

    /// Returns after the next such move, or `at_most` later, or earlier for no reason.
    void wait(std::chrono::nanoseconds at_most) const {
      using std::chrono::milliseconds;
      const auto rest =
          std::min<milliseconds>(std::chrono::ceil<milliseconds>(at_most), std::chrono::hours(1));
      pollfd moved{.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (poll(&moved, 1, static_cast<int>(rest.count())) > 0) {
        alignas(inotify_event) std::array<char, 4096> events;
        [[maybe_unused]] const ssize_t taken = read(descriptor_, events.data(), events.size());
      }
    }

   private:
    int descriptor_;
    bool works_;
  };

  [[nodiscard]] std::filesystem::path path(std::string_view kind, std::string_view key) const {
    std::string name = std::string(kind) + '.' + std::string(key);
    std::ranges::replace(name, '/', '+');
    return folder_ / name;
  }

  [[nodiscard]] gtopk::Error error(std::string_view what, std::string_view key) const {
    return {gtopk::ErrorKind::kBootstrap, "files in " + folder_.string() + ": " +
                                              std::string(what) + " '" + std::string(key) + "'"};
  }

  std::filesystem::path folder_;
};
