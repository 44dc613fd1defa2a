#include "src/engine/host_map.hpp"

#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace gtopk::engine {
namespace {

std::vector<std::uint32_t> numbered(std::span<const std::string> names) {
  std::unordered_map<std::string_view, std::uint32_t> numbers;
  std::vector<std::uint32_t> hosts;
  hosts.reserve(names.size());
  for (const std::string& name : names) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    hosts.push_back(numbers.try_emplace(name, next).first->second);
  }
  return hosts;
}

std::uint32_t count_of(std::span<const std::uint32_t> host_of) {
  std::uint32_t hosts = 0;
  for (const std::uint32_t host : host_of) {
    hosts += host == hosts ? 1 : 0;  // hosts are numbered in order of first appearance
  }
  return hosts;
}

}  // namespace

HostMap::HostMap(std::vector<std::uint32_t> host_of)
    : host_of_(std::move(host_of)), by_host_(host_of_.size()), begin_(count_of(host_of_) + 1) {
  for (const std::uint32_t host : host_of_) {
    ++begin_[host + 1];
  }
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  std::vector<std::uint32_t> next = begin_;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    by_host_[next[host_of_[rank]]++] = rank;
  }
}

HostMap::HostMap(std::span<const std::string> names) : HostMap(numbered(names)) {}

HostMap HostMap::apart(std::uint32_t ranks) {
  std::vector<std::uint32_t> host_of(ranks);
  std::iota(host_of.begin(), host_of.end(), 0U);
  return HostMap(std::move(host_of));
}

}  // namespace gtopk::engine
