#include "src/collectives/header.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>

#include "gtopk/error.hpp"

namespace gtopk::collectives {

using engine::GroupView;
using engine::Task;

namespace {

/// Other ranks learn by this text why an operation failed; error texts are cut off at about 900
/// bytes.
constexpr std::string_view kWaysDiffer = "ranks take different paths";
constexpr std::uint16_t kWay = Header::kOtherWay | Header::kMeasures;

std::string_view path(std::uint16_t flags) {
  if ((flags & Header::kMeasures) != 0) {
    return "measures message costs first";
  }
  return (flags & Header::kOtherWay) != 0 ? "does not go along the tree" : "goes along the tree";
}

}  // namespace

void write_header(std::span<std::byte> message, const GroupView& group, Payload payload) {
  Header header;
  header.flags = payload.flags;
  header.fingerprint = group.fingerprint();
  header.sequence = group.sequence();
  header.index_bytes = payload.index_bytes;
  header.parts = payload.parts;
  header.count = payload.count;
  header.count_bytes = payload.count_bytes;
  std::memset(message.data(), 0, kHeaderBytes);
  std::memcpy(message.data(), &header, sizeof header);
}

Task<Header> read_header(std::span<const std::byte> message, GroupView& group, std::uint32_t from,
                         std::uint32_t most_parts) {
  Header header;
  if (message.size() < kHeaderBytes) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} sent {} bytes where a header of {} was expected",
                            group.member(from), message.size(), kHeaderBytes));
  }
  std::memcpy(&header, message.data(), sizeof header);
  const Header expected;
  if (header.magic != expected.magic || header.version != expected.version) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} speaks wire format {:08x} version {}, this rank {:08x} version {}: "
                            "use the same gtopk version on all ranks",
                            group.member(from), header.magic, header.version, expected.magic,
                            expected.version));
  }
  const bool same_call = header.fingerprint == group.fingerprint();
  const bool no_list = most_parts == 0;
  // Flags and parts of another call may exceed those of this one.
  if (header.sequence != group.sequence() ||
      (same_call && ((header.flags & ~Header::kFlags) != 0 || header.parts > most_parts ||
                     (no_list && header.count_bytes != 0)))) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} sent a damaged header: #{}, flags {:04x}, {} parts, {} bytes of "
                            "counts; expected #{}",
                            group.member(from), header.sequence, header.flags, header.parts,
                            header.count_bytes, group.sequence()));
  }
  if (same_call) {
    co_return header;
  }

  engine::OthersCall asking = group.called_by(from);
  const std::string theirs = co_await asking;
  if (theirs == group.call()) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} sent a damaged header: fingerprint {:016x}, expected {:016x}",
                            group.member(from), header.fingerprint, group.fingerprint()));
  }
  throw Error(ErrorKind::kMismatch,
              fmt::format("ranks differ: {} called {} as #{}, {} called {} as #{}",
                          group.member(from), theirs, header.sequence, group.member(group.rank()),
                          group.call(), group.sequence()));
}

void require_payload(const Header& header, const Payload& expected, const GroupView& group,
                     std::uint32_t from) {
  if (header.count == expected.count && header.flags == expected.flags && header.index_bytes == 0) {
    return;
  }
  if (((header.flags ^ expected.flags) & kWay) != 0) {
    throw Error(
        ErrorKind::kMismatch,
        fmt::format(
            "{}: {} {}, {} {}, both in {} #{}: GTOPK_DENSE must be the same on all ranks; "
            "if it is, one of them failed while the group measured, and the next call works",
            kWaysDiffer, group.member(from), path(header.flags), group.member(group.rank()),
            path(expected.flags), group.call(), header.sequence));
  }
  throw Error(ErrorKind::kMismatch,
              fmt::format("{} sent a damaged header: {} elements, flags {:04x}, {}-byte indices, "
                          "expected {} elements",
                          group.member(from), header.count, header.flags, header.index_bytes,
                          expected.count));
}

bool says_that_ways_differ(const Error& error) {
  return error.kind() == ErrorKind::kMismatch &&
         std::string_view(error.what()).find(kWaysDiffer) != std::string_view::npos;
}

void require_length(std::size_t received, std::size_t expected, const GroupView& group,
                    std::uint32_t from) {
  if (received == expected) {
    return;
  }
  throw Error(ErrorKind::kMismatch, fmt::format("{} sent {} bytes where {} were agreed",
                                                group.member(from), received, expected));
}

}  // namespace gtopk::collectives
