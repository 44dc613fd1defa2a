#include "src/gtopk/algorithms/device_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gtopk/error.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk::sparse {

using engine::Errand;
using engine::Task;

namespace {

constexpr std::size_t kDeviceAlignment = 256;
constexpr std::size_t kPinnedAlignment = 64;

constexpr std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::size_t DeviceNodes::bytes_of(const ListPlan& plan, std::uint64_t entries) {
  return aligned(entries * plan.type.value_bytes(), kDeviceAlignment) +
         aligned(entries * plan.type.index_bytes, kDeviceAlignment);
}

DeviceListRoom room_on_device(const ListPlan& plan, std::uint32_t ranks, bool noted) {
  DeviceListRoom room;
  room.selected = plan.leaf;
  room.index_bytes = plan.type.index_bytes;
  const auto receive = [&](std::uint64_t covered) {
    room.device_bytes += DeviceNodes::bytes_of(plan, plan.entries_of(covered));
    room.pinned_bytes += aligned(plan.message_bytes(covered), kPinnedAlignment);
  };
  const std::size_t reports = aligned(sizeof(DeviceNodes::Reports), kPinnedAlignment);
  // At most so many nodes, each above two lists of so many ranks: that of the fold, and of rounds.
  const auto node = [&](std::uint64_t covered) {
    receive(covered);
    const std::uint64_t both = 2 * plan.entries_of(covered);
    room.device_bytes += DeviceNodes::bytes_of(plan, plan.reselects ? plan.leaf : both) +
                         (plan.reselects ? DeviceNodes::bytes_of(plan, both) : 0);
    room.pinned_bytes += reports;
    room.largest_merge = std::max(room.largest_merge, both);
    room.most_dropped += plan.reselects ? 1 : 0;
  };
  node(1);
  for (std::uint32_t round = 0; round < collectives::Tree(ranks).rounds(); ++round) {
    node(2ULL << round);
  }
  receive(ranks);  // the result
  room.pinned_bytes += reports;
  const std::uint64_t result = plan.entries_of(ranks);
  room.pinned_bytes += noted ? aligned(result * plan.type.bytes(), kPinnedAlignment) : 0;
  room.message_bytes = plan.message_bytes(ranks);
  return room;
}

std::byte* DeviceNodes::take(Taken& from, std::size_t bytes) {
  const std::size_t at = from.taken;
  from.taken += aligned(bytes, from.alignment);
  if (from.taken > from.bytes) {
    throw std::logic_error(fmt::format("lists on a device take {} bytes, {} at most were expected",
                                       from.taken, from.bytes));
  }
  return from.begin + at;
}

DetachedEntries DeviceNodes::take_entries(std::uint64_t count) {
  std::byte* const values = take(on_device_, count * plan_.type.value_bytes());
  return {take(on_device_, count * plan_.type.index_bytes), values};
}

DeviceNodes::Reports* DeviceNodes::take_reports() {
  auto* const reports = reinterpret_cast<Reports*>(take(pinned_, sizeof(Reports)));
  *reports = {.selection = {.finite = 1}, .sound = 1, .fits = 1};
  return reports;
}

List DeviceNodes::note(const Record& record) {
  records_.push_back(record);
  List list;
  list.there = static_cast<std::uint32_t>(records_.size());
  list.rounded = true;
  return settled(list);
}

List DeviceNodes::settled(const List& list) const {
  if (list.there == 0) {
    return list;
  }
  const Record& record = record_of(list);
  List settled;
  settled.there = list.there;
  settled.rounded = true;
  settled.indices = static_cast<std::byte*>(record.list.indices);
  settled.values = static_cast<std::byte*>(record.list.values);
  settled.size = record.list.size;
  settled.finite = record.finite;
  return settled;
}

DeviceList DeviceNodes::place_of(const List& list) const {
  return list.there != 0 ? record_of(list).list : DeviceList{list.indices, list.values, list.size};
}

List DeviceNodes::own() {
  const SelectionReport& report = *step_.report;
  if (report.kept > plan_.leaf) {
    throw std::logic_error(fmt::format("a device selected {} entries, {} at most were asked for",
                                       report.kept, plan_.leaf));
  }
  const bool finite = report.finite != 0;
  return note({.list = {step_.selected.indices, step_.selected.values, finite ? report.kept : 0},
               .finite = finite});
}

List DeviceNodes::received(std::uint32_t from, std::size_t size) {
  const DetachedEntries room = take_entries(size);
  return note({.list = {room.indices, room.values, size}, .from = from});
}

List DeviceNodes::merge(const List& mine, const List& theirs, std::uint64_t keep, bool answers) {
  if (merging_) {
    throw std::logic_error("a node is merged while another one is in the making");
  }
  const List left = settled(mine);
  const List right = settled(theirs);
  const std::uint64_t both = left.size + right.size;
  if (!left.finite || !right.finite || both == 0) {
    return note({.list = {}, .finite = left.finite && right.finite});
  }
  DeviceMerge merge;
  merge.mine = place_of(left);
  merge.theirs = place_of(right);
  merge.keep = keep;
  merge.unites = !plan_.reselects;
  merge.kept = take_entries(plan_.reselects ? std::min(keep, both) : both);
  if (answers && plan_.reselects) {
    merge.dropped = take_entries(both);
  }
  Reports* const reports = take_reports();
  merge.report = &reports->selection;
  merge.sound = &reports->sound;
  const List node = note({.list = {merge.kept.indices, merge.kept.values, 0}});
  node_ = {.record = records_.size() - 1,
           .reports = reports,
           .dropped = {merge.dropped.indices, merge.dropped.values, 0},
           .from = right.there == 0 ? std::nullopt : record_of(right).from};
  merging_.emplace(group_, [&](Errand::Done done) { step_.device->merge(merge, std::move(done)); });
  return node;
}

Task<void> DeviceNodes::merged() {
  if (merging_) {
    Errand& merging = *merging_;
    co_await merging;
    merging_.reset();
    settle();
  }
}

void DeviceNodes::check_sound(std::uint64_t sound, std::optional<std::uint32_t> from) const {
  if (sound != 0) {
    return;
  }
  if (!from) {
    throw std::logic_error(
        fmt::format("a device made a list of indices not ascending below {}", plan_.d));
  }
  throw Error(ErrorKind::kMismatch, fmt::format("{} sent a damaged list: indices not ascending "
                                                "below {}",
                                                group_.member(*from), plan_.d));
}

void DeviceNodes::settle() {
  const Node node = *std::exchange(node_, std::nullopt);
  check_sound(node.reports->sound, node.from);
  const SelectionReport& report = node.reports->selection;
  Record& record = records_.at(node.record);
  record.finite = report.finite != 0;
  record.list.size = record.finite ? report.kept : 0;
  if (record.finite && report.dropped != 0 && node.dropped.indices != nullptr) {
    dropped_.push_back({node.dropped.indices, node.dropped.values, report.dropped});
  }
}

Task<bool> DeviceNodes::inspected(List given) {
  const List result = settled(given);
  if (!result.finite || result.size == 0) {
    co_return result.finite;
  }
  Reports* const reports = take_reports();
  if (noted_) {
    lay_out(plan_.type, copy_, take(pinned_, result.size * plan_.type.bytes()), result.size);
    copy_.size = result.size;
  }
  const DeviceInspection look{.result = place_of(result),
                              .sound = &reports->sound,
                              .fits = &reports->fits,
                              .copy = {copy_.indices, copy_.values}};
  Errand inspecting(group_,
                    [&](Errand::Done done) { step_.device->inspect(look, std::move(done)); });
  co_await inspecting;
  check_sound(reports->sound, result.there == 0 ? std::nullopt : record_of(result).from);
  co_return reports->fits != 0;
}

void DeviceNodes::write_edits(const List& own, const List& result, PutBack put_back,
                              bool happened) const {
  ListEdits& edits = *step_.edits;
  edits = {};
  if (!happened) {
    return;
  }
  edits.put_back_own = put_back == PutBack::kOwn ? 1 : 0;
  edits.own = place_of(own);
  edits.result = place_of(result);
  edits.dropped_lists = dropped_.size();
  std::ranges::copy(dropped_, std::begin(edits.dropped));
  edits.happened = 1;
}

}  // namespace gtopk::sparse
