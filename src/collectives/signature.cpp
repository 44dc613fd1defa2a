#include "collectives/signature.hpp"

#include <cstring>

#include <fmt/format.h>

#include "engine/group_view.hpp"
#include "gtopk/error.hpp"

namespace gtopk::collectives {
namespace {

Signature signature_of(const Header& header) {
  return {static_cast<Collective>(header.collective),
          static_cast<DataType>(header.dtype),
          static_cast<ReduceOp>(header.op),
          static_cast<Algorithm>(header.algorithm),
          static_cast<PutBack>(header.put_back),
          static_cast<Selector>(header.selector),
          header.root,
          header.d,
          header.k};
}

std::string name_of(DataType type) {
  const auto code = static_cast<std::uint8_t>(type);
  if (type != opaque_type(code)) return std::string(to_string(type));
  return fmt::format("opaque({})", code & 127U);
}

}  // namespace

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::kSparseAllReduce:
      return "sparse_all_reduce";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

void refuse_unknown(unsigned value, std::string_view what) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format("there is no {} number {}", what, value));
}

std::string describe(const Signature& s) {
  switch (s.collective) {
    case Collective::kSparseAllReduce:
      return fmt::format(
          "sparse_all_reduce(algorithm={}, d={}, k={}, dtype={}, op={}, put_back={}, select={})",
          to_string(s.algorithm), s.d, s.k, to_string(s.dtype), to_string(s.op),
          to_string(s.put_back), to_string(s.selector));
    case Collective::kAllReduce:
      return fmt::format("all_reduce(d={}, dtype={}, op={})", s.d, to_string(s.dtype),
                         to_string(s.op));
    case Collective::kBroadcast:
      return fmt::format("broadcast(bytes={}, dtype={}, root={})", s.d, name_of(s.dtype), s.root);
    case Collective::kAllGather:
      return fmt::format("all_gather(bytes={}, dtype={})", s.d, name_of(s.dtype));
    case Collective::kBarrier:
      return "barrier()";
  }
  return "unknown";
}

void write_header(std::span<std::byte> message, const Signature& signature, std::uint64_t sequence,
                  Payload payload) {
  Header header;
  header.flags = payload.flags;
  header.collective = static_cast<std::uint8_t>(signature.collective);
  header.dtype = static_cast<std::uint8_t>(signature.dtype);
  header.op = static_cast<std::uint8_t>(signature.op);
  header.algorithm = static_cast<std::uint8_t>(signature.algorithm);
  header.put_back = static_cast<std::uint8_t>(signature.put_back);
  header.selector = static_cast<std::uint8_t>(signature.selector);
  header.index_bytes = payload.index_bytes;
  header.root = signature.root;
  header.sequence = sequence;
  header.d = signature.d;
  header.k = signature.k;
  header.count = payload.count;
  std::memset(message.data(), 0, kHeaderBytes);
  std::memcpy(message.data(), &header, sizeof header);
}

void require_payload(const Header& header, std::uint64_t count, const engine::GroupView& group,
                     std::uint32_t from) {
  if (header.count == count && header.flags == 0 && header.index_bytes == 0) return;
  throw Error(
      ErrorKind::kMismatch,
      fmt::format("{} sent a damaged header: {} elements, flags {:04x}, {}-byte indices, "
                  "expected {} elements",
                  group.member(from), header.count, header.flags, header.index_bytes, count));
}

Header read_header(std::span<const std::byte> message, const Signature& mine,
                   const engine::GroupView& group, std::uint32_t from) {
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
                            "use one gtopk version on all ranks",
                            group.member(from), header.magic, header.version, expected.magic,
                            expected.version));
  }
  if ((header.flags & ~Header::kNonFinite) != 0 || header.wire != 0 || header.reserved != 0) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} sent a damaged header: flags {:04x}, wire {}, reserved {}",
                            group.member(from), header.flags, header.wire, header.reserved));
  }
  const Signature theirs = signature_of(header);
  if (theirs != mine || header.sequence != group.sequence()) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("ranks differ: {} called {} as #{}, {} called {} as #{}",
                            group.member(from), describe(theirs), header.sequence,
                            group.member(group.rank()), describe(mine), group.sequence()));
  }
  return header;
}

}  // namespace gtopk::collectives
