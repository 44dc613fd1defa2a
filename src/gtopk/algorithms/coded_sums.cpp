#include "src/gtopk/algorithms/coded_sums.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// The number of elements processed at a time, a multiple of every wire's block of 64, 256 or 320
/// elements.
constexpr std::size_t kStretch = 1280;

template <class Value>
using Stretch = std::array<Value, kStretch>;

/// Reads acc of one rank, or of its host, stretch by stretch.
template <class T>
class Acc {
 public:
  using Value = Accumulation<T>;

  Acc(const SparseCall& call, const CodedSums& codes)
      : cursor_(Segments<T>(call.tensor)),
        residual_(static_cast<const Value*>(call.residual)),
        host_(static_cast<const Value*>(codes.host_acc)) {}

  void read(std::size_t begin, std::size_t count, Value* acc) {
    if (host_ != nullptr) {
      std::copy_n(host_ + begin, count, acc);
      return;
    }
    for (const std::size_t end = begin + count; begin < end;) {
      cursor_.go_to(begin);
      const std::size_t length = std::min(end, cursor_.end()) - begin;
      static_cast<void>(accumulate<T, Value>(Segments<const T>(cursor_.at(begin)),
                                             residual_ == nullptr ? nullptr : residual_ + begin,
                                             acc, length));
      begin += length;
      acc += length;
    }
  }

 private:
  SegmentCursor<T> cursor_;
  const Value* residual_;
  const Value* host_;
};

/// Calls visit(begin, count, at) for the stretches of a region, with their first element and the
/// position of their code in the region's.
template <class Visit>
void for_each_stretch(const CodedRegions& regions, std::uint32_t region, Visit visit) {
  const std::size_t first = regions.begin(region);
  const std::size_t end = regions.begin(region + 1);
  for (std::size_t begin = first; begin < end; begin += kStretch) {
    visit(begin, std::min(kStretch, end - begin), regions.bytes_of(begin - first));
  }
}

template <class T>
void code_acc_as(const SparseCall& call, const CodedSums& codes, std::uint32_t region) {
  Acc<T> reading(call, codes);
  Stretch<Accumulation<T>> acc;
  std::byte* const code = codes.own_code(region).data();
  for_each_stretch(codes.regions, region,
                   [&](std::size_t begin, std::size_t count, std::size_t at) {
                     reading.read(begin, count, acc.data());
                     codes.regions.coder().encode(acc.data(), count, code + at);
                   });
}

template <class Value>
bool all_finite(const Stretch<Value>& values, std::size_t count) {
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    finite &= is_finite_key<Value>(magnitude_key(values[i]));
  }
  return finite;
}

template <class T>
void code_sum_as(const SparseCall& call, const CodedSums& codes) {
  using Value = Accumulation<T>;
  const BlockCoder& coder = codes.regions.coder();
  const std::uint32_t rank = codes.own_region;
  const std::size_t first = codes.regions.begin(rank);
  auto* const sums = reinterpret_cast<Value*>(codes.sums.data());
  std::byte* const own = codes.own_code(rank).data();
  std::byte* const result = codes.sum_code(rank).data();
  Acc<T> reading(call, codes);
  Stretch<Value> rest;
  Stretch<Value> decoded;
  const auto subtract = [](Stretch<Value>& from, const Value* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      from[i] -= values[i];
    }
  };
  for_each_stretch(codes.regions, rank, [&](std::size_t begin, std::size_t count, std::size_t at) {
    Value* const sum = sums + (begin - first);
    for (std::uint32_t from = 0; from < codes.regions.ranks(); ++from) {
      const std::byte* const code = from == rank ? own : codes.contribution(from).data();
      coder.decode(code + at, count, from == 0 ? sum : decoded.data());
      for (std::size_t i = 0; from != 0 && i < count; ++i) {
        sum[i] += decoded[i];
      }
    }
    coder.encode(sum, count, result + at);
    // The rank's residual becomes this here, as in commit_sums().
    reading.read(begin, count, rest.data());
    coder.decode(own + at, count, decoded.data());
    subtract(rest, decoded.data(), count);
    coder.decode(result + at, count, decoded.data());
    for (std::size_t i = 0; i < count; ++i) {
      rest[i] += sum[i] - decoded[i];
    }
    if (!all_finite(rest, count)) {
      std::fill_n(sum, count, std::numeric_limits<Value>::quiet_NaN());
      coder.encode(sum, count, result + at);
    }
  });
}

/// Whether no block of a region's sum is NaN. A block is NaN either completely or not at all.
template <class Value>
bool no_block_is_nan(const CodedRegions& regions, std::uint32_t region, const std::byte* code) {
  const std::size_t block = regions.coder().block();
  const std::size_t bytes = regions.bytes_of(block);
  bool finite = true;
  for (std::size_t begin = 0; begin < regions.size(region); begin += block) {
    Value first = 0;
    regions.coder().decode(code, 1, &first);
    finite &= is_finite_key<Value>(magnitude_key(first));
    code += bytes;
  }
  return finite;
}

template <class T>
bool sums_are_finite_as(const SparseCall& call, const CodedSums& codes) {
  using Value = Accumulation<T>;
  const auto divisor = divisor_of<Value>(call.options, codes.ranks);
  Stretch<Value> sums;
  bool finite = true;
  for (std::uint32_t region = 0; region < codes.regions.ranks(); ++region) {
    const std::byte* const code = codes.sum_code(region).data();
    if (std::is_same_v<T, Value> && divisor >= 1) {
      finite &= no_block_is_nan<Value>(codes.regions, region, code);
      continue;
    }
    for_each_stretch(codes.regions, region,
                     [&](std::size_t /*begin*/, std::size_t count, std::size_t at) {
                       codes.regions.coder().decode(code + at, count, sums.data());
                       finite &= all_representable<T, Value>(sums.data(), count, divisor);
                     });
  }
  return finite;
}

/// Returns the sum, divided and rounded once.
template <class T>
void deliver(SegmentCursor<T>& tensor, std::size_t begin, std::size_t count,
             const Accumulation<T>* sums, Accumulation<T> divisor) {
  for (const std::size_t end = begin + count; begin < end;) {
    tensor.go_to(begin);
    const std::size_t length = std::min(end, tensor.end()) - begin;
    commit_whole<T, Accumulation<T>>(Segments<T>(tensor.at(begin)), nullptr, sums, length, divisor);
    begin += length;
    sums += length;
  }
}

template <class T>
void commit_as(const SparseCall& call, const CodedSums& codes) {
  using Value = Accumulation<T>;
  const BlockCoder& coder = codes.regions.coder();
  const auto divisor = divisor_of<Value>(call.options, codes.ranks);
  auto* const residual = static_cast<Value*>(call.residual);
  auto* const delivered = static_cast<Value*>(call.delivered.values);
  const auto* const own_sums = reinterpret_cast<const Value*>(codes.sums.data());
  Acc<T> reading(call, codes);
  SegmentCursor<T> tensor{Segments<T>(call.tensor)};
  const bool owns = codes.own_region < codes.regions.ranks();
  Stretch<Value> sums;
  Stretch<Value> rest;
  Stretch<Value> sent;
  for (std::uint32_t region = 0; region < codes.regions.ranks(); ++region) {
    const std::byte* const own = owns ? codes.own_code(region).data() : nullptr;
    const std::byte* const result = codes.sum_code(region).data();
    const std::size_t first = codes.regions.begin(region);
    for_each_stretch(codes.regions, region,
                     [&](std::size_t begin, std::size_t count, std::size_t at) {
                       coder.decode(result + at, count, sums.data());
                       if (residual != nullptr && !owns) {
                         std::fill_n(residual + begin, count, Value{0});
                       } else if (residual != nullptr) {
                         reading.read(begin, count, rest.data());
                         coder.decode(own + at, count, sent.data());
                         for (std::size_t i = 0; i < count; ++i) {
                           rest[i] -= sent[i];
                         }
                         for (std::size_t i = 0; region == codes.own_region && i < count; ++i) {
                           rest[i] += own_sums[begin - first + i] - sums[i];
                         }
                         std::copy_n(rest.data(), count, residual + begin);
                       }
                       deliver(tensor, begin, count, sums.data(), divisor);
                       if (delivered != nullptr) {
                         std::copy_n(sums.data(), count, delivered + begin);
                       }
                     });
  }
}

}  // namespace

void code_acc(const SparseCall& call, const CodedSums& codes, std::uint32_t region) {
  const KeepDenormals guard;
  visit_floating(call.dtype, [&]<class T>() { code_acc_as<T>(call, codes, region); });
}

void code_sum(const SparseCall& call, const CodedSums& codes) {
  const KeepDenormals guard;
  visit_floating(call.dtype, [&]<class T>() { code_sum_as<T>(call, codes); });
}

bool sums_are_finite(const SparseCall& call, const CodedSums& codes) {
  const KeepDenormals guard;
  bool finite = false;
  visit_floating(call.dtype, [&]<class T>() { finite = sums_are_finite_as<T>(call, codes); });
  return finite;
}

void commit_sums(const SparseCall& call, const CodedSums& codes) {
  const KeepDenormals guard;
  visit_floating(call.dtype, [&]<class T>() { commit_as<T>(call, codes); });
}

}  // namespace gtopk::sparse
