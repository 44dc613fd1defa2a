#include "src/transport/ucx/address.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "gtopk/error.hpp"

namespace gtopk::transport {
namespace {

constexpr std::string_view kMagic = "GTUX";
constexpr std::uint8_t kVersion = 5;

template <typename Integer>
void put(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
}

void put(std::string& bytes, std::string_view text) {
  put(bytes, static_cast<std::uint16_t>(text.size()));
  bytes += text;
}

void put(std::string& bytes, const HostIdentity& place) {
  put(bytes, std::string_view(place.boot));
  put(bytes, place.process_namespace);
  put(bytes, place.network_namespace);
  put(bytes, place.ipc_namespace);
  put(bytes, place.started);
}

/// Takes fields off the front of a blob, or names the missing one.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view bytes(std::size_t count, const char* field) {
    if (rest_.size() < count) {
      throw Error(
          ErrorKind::kBootstrap,
          fmt::format("a peer's UCX address is cut off in its {}: expected {} bytes, found {}",
                      field, count, rest_.size()));
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  template <typename Integer>
  Integer integer(const char* field) {
    const std::string_view taken = bytes(sizeof(Integer), field);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    }
    return static_cast<Integer>(value);
  }

  HostIdentity place() {
    HostIdentity place;
    place.boot = bytes(integer<std::uint16_t>("boot id length"), "boot id");
    place.process_namespace = integer<std::uint64_t>("process namespace");
    place.network_namespace = integer<std::uint64_t>("network namespace");
    place.ipc_namespace = integer<std::uint64_t>("IPC namespace");
    place.started = integer<std::uint64_t>("start time");
    return place;
  }

  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string encode(const UcxAddress& address) {
  std::string bytes(kMagic);
  put(bytes, kVersion);
  put(bytes, address.process.identity);
  put(bytes, address.process.process);
  put(bytes, std::string_view(address.process.host));
  put(bytes, address.process.place);
  put(bytes, address.key);
  put(bytes, static_cast<std::uint16_t>(address.tcp.size()));
  for (const TcpAddress& each : address.tcp) {
    put(bytes, std::string_view(each.host));
    put(bytes, each.port);
  }
  put(bytes, static_cast<std::uint32_t>(address.worker.size()));
  return bytes += address.worker;
}

UcxAddress decode_ucx_address(std::string_view blob) {
  Reader reader(blob);
  if (reader.bytes(kMagic.size(), "magic") != kMagic) {
    throw Error(ErrorKind::kBootstrap,
                "a peer's address is not one of gtopk's UCX transport: do all ranks "
                "run the same gtopk, with the same transport?");
  }
  const auto version = reader.integer<std::uint8_t>("version");
  if (version != kVersion) {
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format("a peer's UCX address has version {}, this gtopk speaks {}: install the "
                    "same gtopk on every host",
                    version, kVersion));
  }
  UcxAddress address;
  address.process.identity = reader.integer<std::uint64_t>("identity");
  address.process.process = reader.integer<std::int64_t>("pid");
  address.process.host = reader.bytes(reader.integer<std::uint16_t>("host length"), "host");
  address.process.place = reader.place();
  address.key = reader.integer<Tag>("key");
  const auto addresses = reader.integer<std::uint16_t>("number of TCP addresses");
  for (std::uint16_t i = 0; i < addresses; ++i) {
    TcpAddress& each = address.tcp.emplace_back();
    each.host = reader.bytes(reader.integer<std::uint16_t>("TCP host length"), "TCP host");
    each.port = reader.integer<std::uint16_t>("TCP port");
  }
  address.worker =
      reader.bytes(reader.integer<std::uint32_t>("worker address length"), "worker address");
  if (reader.left() != 0) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("a peer's UCX address has {} bytes of worker address and {} left over",
                            address.worker.size(), reader.left()));
  }
  return address;
}

}  // namespace gtopk::transport
