#include "src/gtopk/algorithms/critical_path.hpp"

#include <algorithm>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/gtopk/algorithms/list_plan.hpp"
#include "src/gtopk/wire/coded.hpp"
#include "src/gtopk/wire/counts.hpp"

namespace gtopk::sparse {

using collectives::kHeaderBytes;

std::uint64_t CriticalPath::ranks_below(std::uint32_t round) const {
  const std::uint64_t leaves = 1ULL << round;
  return leaves + std::min<std::uint64_t>(leaves, tree().ranks() - tree().leaves());
}

std::uint64_t CriticalPath::united(std::uint64_t ranks) const {
  return shape_.k > shape_.d / ranks ? shape_.d : shape_.k * ranks;
}

void CriticalPath::sweep(std::uint64_t result) {
  work_.selected += shape_.d;
  work_.picked += shape_.k;
  work_.committed += shape_.d;
  work_.applied += shape_.k + result;
}

void CriticalPath::sweep_whole() {
  work_.gathered += shape_.d;
  work_.settled += shape_.d;
}

void CriticalPath::carry(std::uint64_t messages, double bytes, Route route) {
  Traffic& traffic = route.crossing == 0 ? work_.within : work_.between;
  traffic.messages += messages;
  traffic.bytes += bytes;
  work_.host_bytes += bytes * route.crossing;
}

double CriticalPath::bytes_of(std::uint64_t entries, Holds holds) const {
  const Codec& own = *shape_.codec;
  const bool as_it_is = own.rounds() && (holds == Holds::kSums ||
                                         (holds == Holds::kPart && !own.parts_are_rounded()));
  const Codec& codec = as_it_is ? kLossless.codec : own;
  const bool counted = shape_.counted && holds == Holds::kSums;
  return codec.expected_bytes(shape_.type, entries, shape_.d) +
         (counted ? static_cast<double>(counts::fewest_bytes(entries)) : 0);
}

void CriticalPath::list(std::uint64_t entries, Holds holds, Route route) {
  carry_list(bytes_of(entries, holds), route);
  if (shape_.codec->codes()) {
    work_.coded += 2 * entries;  // once on each side
  }
}

void CriticalPath::sum_or_selections(std::uint64_t ranks, Route route) {
  const double code = bytes_of(shape_.k, Holds::kSelection) - static_cast<double>(kFrontBytes);
  const double selections =
      static_cast<double>(kFrontBytes) +
      static_cast<double>(ranks * bytes_of_selection(static_cast<std::size_t>(code)));
  const double sum = bytes_of(united(ranks), Holds::kSums);
  if (!shape_.codec->rounds() || sum <= selections) {
    list(united(ranks), Holds::kSums, route);
    return;
  }
  carry_list(selections, route);
  work_.coded += ranks * shape_.k;  // decoding by the receiver; the sender copies codes
  // The receiver adds up the selections, level by level.
  for (std::uint64_t below = 2; below < 2 * ranks; below *= 2) {
    unite((ranks / std::min(below, ranks)) * united(std::min(below, ranks)));
  }
}

void CriticalPath::message(std::uint64_t bytes, Route route) {
  carry(1, static_cast<double>(kHeaderBytes + bytes), route);
}

void CriticalPath::doubling(const collectives::Tree& tree, Route route) {
  const std::uint32_t nodes = tree.rounds() + (tree.folds(0) ? 1 : 0);
  for (std::uint32_t i = 0; i < nodes; ++i) {
    node(shape_.k, route);
  }
  if (tree.folds(0)) {
    list(shape_.k, Holds::kSelection, route);
  }
}

void CriticalPath::headers_along_tree(std::uint64_t bytes) {
  if (folds()) {
    message(bytes, routes().fold());
  }
  for (std::uint32_t round = 0; round < tree().rounds(); ++round) {
    message(bytes, routes().swap(round));
  }
  if (folds()) {
    message(bytes, routes().fold());
  }
}

Route CriticalPath::between_all() const {
  return routes().hosts() == 1 ? kWithin : Route{routes().largest_host()};
}

void CriticalPath::spread(std::size_t bytes, std::uint32_t ranks, Route route) {
  const std::uint64_t others = ranks - 1;
  carry(bytes > kAcknowledgedBytes ? 2 * others : others, static_cast<double>(others * bytes),
        route);
}

void CriticalPath::reduce(std::uint64_t values) {
  const std::uint64_t bytes = values * shape_.type.value_bytes();
  const bool large = bytes > collectives::kRecursiveDoublingBytes;
  headers_along_tree(large ? 0 : bytes);
  if (!large) {
    add((tree().rounds() + (folds() ? 1 : 0)) * values);
    return;
  }
  const std::uint32_t ranks = tree().ranks();
  if (ranks == 1) {
    return;
  }
  const std::uint32_t each = routes().two_levels();
  if (each == 0) {
    ring(values, ranks, routes().ring());
  } else {
    ring(values, each, kWithin);
    ring(values / each, ranks / each, {each});
  }
}

void CriticalPath::ring(std::uint64_t values, std::uint32_t ranks, Route route) {
  // Pieces of a part follow one another without a pause, so alpha is paid once per part.
  const auto part = [&](std::uint32_t index) {
    return collectives::chunk_begin(values, ranks, index + 1) -
           collectives::chunk_begin(values, ranks, index);
  };
  const std::uint64_t sent = 2 * values - part(0) - part(1);
  carry(2ULL * (ranks - 1), static_cast<double>(sent * shape_.type.value_bytes()), route);
  add(values - part(0));
}

}  // namespace gtopk::sparse
