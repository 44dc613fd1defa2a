#include "src/collectives/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "gtopk/error.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::collectives {
namespace {

/// Adds a check after the existing ones.
void also_check(Collective& collective, std::function<void(const GroupShape&)> check) {
  collective.check = [earlier = std::move(collective.check),
                      check = std::move(check)](const GroupShape& group) {
    if (earlier) {
      earlier(group);
    }
    check(group);
  };
}

}  // namespace

void take_host_only(Collective& collective, Memory memory, std::string_view why) {
  if (memory.is_host()) {
    return;
  }
  also_check(collective, [=, name = collective.name](const GroupShape& group) {
    group.check_host(memory, name, why);
  });
}

void take_moved(Collective& collective, Memory memory, std::optional<std::uint32_t> other) {
  if (memory.is_host()) {
    return;
  }
  also_check(collective, [=, name = collective.name](const GroupShape& group) {
    group.check_moved(memory, name, other);
  });
}

DataType common_type(std::string_view name, std::span<const DataType> types) {
  const DataType first = types.empty() ? DataType::kUint8 : types.front();
  const auto other = std::ranges::find_if(types, [=](DataType type) { return type != first; });
  if (other != types.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} takes buffers of one type: {} expected, {} seen", name,
                            name_of(first), name_of(*other)));
  }
  return first;
}

void keep(ConstBytes part, Bytes output) {
  if (!part.empty() && part.data() != output.data()) {
    std::ranges::copy(part.host(), output.host().begin());
  }
}

void check_kept(ConstBytes part, Bytes output, std::string_view operation,
                const GroupShape& group) {
  if (part.empty() || part.data() == output.data()) {
    return;
  }
  static constexpr std::string_view kWhy =
      "copies what a rank sends to itself, unless the buffers are the same";
  group.check_host(part.memory(), operation, kWhy);
  group.check_host(output.memory(), operation, kWhy);
}

}  // namespace gtopk::collectives
