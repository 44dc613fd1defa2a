#include "src/communicator/peer_directory.hpp"

#include <chrono>
#include <exception>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk {
namespace {

/// A published address is found at once, so a longer wait means that the directory is slow or gone.
constexpr std::chrono::seconds kLookupBound{30};
constexpr std::chrono::milliseconds kLookupSlice{500};

/// The prefix of the value that replaces an address. No transport's address starts with it.
constexpr std::string_view kLeft = "gtopk/left:";

std::string name_of(std::uint64_t identity) {
  return fmt::format("gtopk/address/{:016x}", identity);
}

engine::PeerRecord record_of(std::string published) {
  if (published.starts_with(kLeft)) {
    return {.address = {}, .left = true, .last_words = published.substr(kLeft.size())};
  }
  return {.address = std::move(published), .left = false, .last_words = {}};
}

}  // namespace

void PeerDirectory::publish(std::uint64_t identity, const std::string& address) {
  directory_->publish(name_of(identity), address);
}

engine::PeerRecord PeerDirectory::find(std::uint64_t identity, const std::stop_token& stop) {
  const std::string name = name_of(identity);
  const auto end = std::chrono::steady_clock::now() + kLookupBound;
  const bool failed_before = fails_.exchange(true);
  while (!stop.stop_requested() && std::chrono::steady_clock::now() < end) {
    if (auto published = directory_->lookup(name, kLookupSlice)) {
      fails_ = false;
      return record_of(*std::move(published));
    }
  }
  fails_ = failed_before || !stop.stop_requested();
  throw Error(ErrorKind::kBootstrap,
              stop.stop_requested()
                  ? std::string("this process is leaving its process groups")
                  : fmt::format("'{}' was not found within {} s", name, kLookupBound.count()));
}

void PeerDirectory::publish_departure(std::uint64_t identity, const std::string& last_words,
                                      bool may_be_gone) {
  if (fails_) {
    return;  // the directory may be gone, and finding that out again may take long
  }
  try {
    const std::string name = name_of(identity);
    directory_->publish(name, fmt::format("{}{}", kLeft, last_words));
    // Not all stores confirm that a value is set, so read it to ensure that others can. A question
    // without an answer would make torch's TCPStore write a stack trace to stderr.
    if (!may_be_gone) {
      static_cast<void>(directory_->lookup(name, std::chrono::nanoseconds::zero()));
    }
  } catch (const std::exception& error) {
    transport::log().debug("could not tell the directory that this process is leaving: {}",
                           error.what());
  }
}

}  // namespace gtopk
