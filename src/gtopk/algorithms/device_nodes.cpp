#include "src/gtopk/algorithms/device_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gtopk/error.hpp"
#include "src/collectives/tree.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/coded.hpp"

namespace gtopk::sparse {

using engine::Errand;
using engine::Task;

namespace {

constexpr std::size_t kDeviceAlignment = 256;
constexpr std::size_t kPinnedAlignment = 64;

constexpr std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// The most of a message without its header; a device writes whole words.
std::size_t coded_bytes(const ListPlan& plan, const Codec& codec, std::uint64_t entries) {
  return aligned(codec.message_bytes(plan.type, entries, plan.d) - kFrontBytes,
                 sizeof(std::uint64_t));
}

/// The same for that many entries or fewer, which may take a bit more each: they lie less dense.
std::size_t most_coded_bytes(const ListPlan& plan, const Codec& codec, std::uint64_t entries) {
  return coded_bytes(plan, codec, entries) + aligned(entries / 8 + 1, sizeof(std::uint64_t));
}

}  // namespace

std::size_t DeviceNodes::bytes_of(const ListPlan& plan, std::uint64_t entries) {
  return aligned(entries * plan.type.value_bytes(), kDeviceAlignment) +
         aligned(entries * plan.type.index_bytes, kDeviceAlignment);
}

const Codec& DeviceNodes::node_codec(const ListPlan& plan) {
  return plan.reselects || !plan.codec->rounds() ? *plan.codec : kLossless.codec;
}

DeviceListRoom room_on_device(const ListPlan& plan, std::uint32_t ranks, bool noted) {
  const bool codes = plan.codec->codes();
  DeviceListRoom room;
  room.selected = plan.leaf;
  room.index_bytes = plan.type.index_bytes;
  const auto receive = [&](std::uint64_t covered) {
    const std::size_t message = plan.message_bytes(covered);
    room.device_bytes += DeviceNodes::bytes_of(plan, plan.entries_of(covered)) +
                         (codes ? aligned(message - kFrontBytes, kDeviceAlignment) : 0);
    room.pinned_bytes += aligned(message, kPinnedAlignment);
  };
  const std::size_t reports = aligned(sizeof(DeviceNodes::Reports), kPinnedAlignment);
  const auto close = [&](const Codec& codec, std::uint64_t most) {
    if (codec.codes()) {
      room.device_bytes += aligned(most_coded_bytes(plan, codec, most), kDeviceAlignment) +
                           (codec.rounds() ? DeviceNodes::bytes_of(plan, most) : 0);
      room.most_dropped += codec.rounds() ? 1 : 0;
      room.largest_coded = std::max(room.largest_coded, most);
    }
  };
  // At most so many nodes, each above two lists of so many ranks: that of the fold, and of rounds.
  const auto node = [&](std::uint64_t covered) {
    receive(covered);
    const std::uint64_t both = 2 * plan.entries_of(covered);
    const std::uint64_t kept = plan.reselects ? plan.leaf : both;
    room.device_bytes += DeviceNodes::bytes_of(plan, kept) +
                         (plan.reselects ? DeviceNodes::bytes_of(plan, both) : 0);
    close(DeviceNodes::node_codec(plan), kept);
    room.pinned_bytes += reports;
    room.largest_merge = std::max(room.largest_merge, both);
    room.most_dropped += plan.reselects ? 1 : 0;
  };
  // This rank's selection, and where nodes lie until they are rounded.
  close(*plan.codec, plan.leaf);
  room.device_bytes += plan.codec->rounds() ? 2 * DeviceNodes::bytes_of(plan, plan.leaf) : 0;
  room.pinned_bytes += reports;
  node(1);
  for (std::uint32_t round = 0; round < collectives::Tree(ranks).rounds(); ++round) {
    node(2ULL << round);
  }
  receive(ranks);  // the result
  room.pinned_bytes += reports;
  const std::uint64_t result = plan.entries_of(ranks);
  room.pinned_bytes += noted ? aligned(result * plan.type.bytes(), kPinnedAlignment) : 0;
  room.message_bytes = plan.message_bytes(ranks);
  room.largest_coded = codes ? std::max(room.largest_coded, result) : 0;
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
  *reports = {.selection = {.finite = 1}, .closing = {}, .sound = 1, .fits = 1};
  return reports;
}

List DeviceNodes::note(const Record& record) {
  records_.push_back(record);
  List list;
  list.there = static_cast<std::uint32_t>(records_.size());
  return settled(list);
}

List DeviceNodes::settled(const List& list) const {
  if (list.there == 0) {
    return list;
  }
  const Record& record = record_of(list);
  List settled;
  settled.there = list.there;
  settled.rounded = record.rounded;
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
  Record record{.list = {step_.selected.indices, step_.selected.values, finite ? report.kept : 0},
                .finite = finite};
  if (!plan_.codec->codes() || record.list.size == 0) {
    return note(record);
  }
  Reports& reports = *take_reports();
  // An entry rounded to zero is not sent, so it is not cleared.
  DeviceClosing close = closing(record, *plan_.codec, step_.selected, report.kept, true, reports);
  close.made = step_.report;
  close.zeros_are_lost = false;
  node_ = {.record = records_.size(),
           .reports = &reports,
           .dropped = {},
           .lost = {close.lost.indices, close.lost.values, 0},
           .merges = false,
           .closes = true,
           .from = std::nullopt};
  const List own = note(record);
  working_.emplace(group_, [&](Errand::Done done) { step_.device->close(close, std::move(done)); });
  return own;
}

DeviceClosing DeviceNodes::closing(Record& record, const Codec& codec, const DetachedEntries& room,
                                   std::uint64_t most, bool answers, Reports& reports) {
  DeviceClosing close;
  close.format = codec.on_device().value();
  close.list = room;
  close.most = most;
  close.made = &reports.selection;
  close.zeros_are_lost = true;
  close.report = &reports.closing;
  if (codec.rounds()) {
    close.kept = take_entries(most);
    record.list = {close.kept.indices, close.kept.values, 0};
    if (answers) {
      close.lost = take_entries(most);
    }
  }
  close.message_bytes = coded_bytes(plan_, codec, most);
  close.message = take(on_device_, close.message_bytes);
  record.message = {close.message, 0, close.format};
  record.message_memory = memory();
  return close;
}

List DeviceNodes::received(std::uint32_t from, std::size_t size) {
  const DetachedEntries room = take_entries(size);
  return note({.list = {room.indices, room.values, size}, .from = from});
}

List DeviceNodes::received_coded(std::uint32_t from, std::size_t size, Bytes message,
                                 bool unrounded) {
  const DetachedEntries room = take_entries(size);
  const ListFormat format = unrounded ? ListFormat::kLossless : plan_.codec->on_device().value();
  return note({.list = {room.indices, room.values, size},
               .from = from,
               .rounded = !unrounded,
               .decoded = false,
               .message = {message.data(), message.size(), format},
               .message_memory = message.memory()});
}

ConstBytes DeviceNodes::message_of(const List& list) const {
  const Record& record = record_of(list);
  return {record.message.bytes, record.message.size, record.message_memory};
}

CodedList DeviceNodes::to_decode(const List& list) {
  if (list.there == 0 || record_of(list).decoded) {
    return {};
  }
  Record& record = records_.at(list.there - 1);
  record.decoded = true;
  return record.message;
}

List DeviceNodes::merge(const List& mine, const List& theirs, std::uint64_t keep, bool answers) {
  if (working_ || (mine.there != 0 && !record_of(mine).decoded)) {
    throw std::logic_error("a node is merged of what is still in the making");
  }
  const List left = settled(mine);
  const List right = settled(theirs);
  const std::uint64_t both = left.size + right.size;
  const Codec& codec = node_codec(plan_);
  Record record{.finite = left.finite && right.finite,
                .rounded = plan_.reselects || !plan_.codec->rounds()};
  if (!record.finite || both == 0) {
    return note(record);
  }
  DeviceMerge merge;
  merge.mine = place_of(left);
  merge.theirs = place_of(right);
  merge.coded = to_decode(right);
  merge.keep = keep;
  merge.unites = !plan_.reselects;
  const std::uint64_t most = plan_.reselects ? std::min(keep, both) : both;
  merge.kept = codec.rounds() ? unrounded_room() : take_entries(most);
  record.list = {merge.kept.indices, merge.kept.values, 0};
  if (answers && plan_.reselects) {
    merge.dropped = take_entries(both);
  }
  Reports& reports = *take_reports();
  merge.report = &reports.selection;
  merge.sound = &reports.sound;
  if (codec.codes()) {
    merge.closing = closing(record, codec, merge.kept, most, answers, reports);
  }
  node_ = {.record = records_.size(),
           .reports = &reports,
           .dropped = {merge.dropped.indices, merge.dropped.values, 0},
           .lost = {merge.closing.lost.indices, merge.closing.lost.values, 0},
           .merges = true,
           .closes = codec.codes(),
           .from = right.there == 0 ? std::nullopt : record_of(right).from};
  const List node = note(record);
  working_.emplace(group_, [&](Errand::Done done) { step_.device->merge(merge, std::move(done)); });
  return node;
}

DetachedEntries DeviceNodes::unrounded_room() {
  if (unrounded_.indices == nullptr) {
    unrounded_ = take_entries(plan_.leaf);
  }
  return unrounded_;
}

Task<void> DeviceNodes::merged() {
  if (working_) {
    Errand& working = *working_;
    co_await working;
    working_.reset();
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
  throw Error(
      ErrorKind::kMismatch,
      fmt::format("{} sent a damaged list: {} below {}", group_.member(*from),
                  plan_.codec->codes() ? "not a valid code of entries" : "indices not ascending",
                  plan_.d));
}

void DeviceNodes::settle() {
  const Node node = *std::exchange(node_, std::nullopt);
  Record& record = records_.at(node.record);
  if (node.merges) {
    check_sound(node.reports->sound, node.from);
    const SelectionReport& report = node.reports->selection;
    record.finite = report.finite != 0;
    record.list.size = record.finite ? report.kept : 0;
    if (record.finite && report.dropped != 0 && node.dropped.indices != nullptr) {
      dropped_.push_back({node.dropped.indices, node.dropped.values, report.dropped});
    }
  }
  if (node.closes && record.finite) {
    const ClosingReport& report = node.reports->closing;
    record.finite = report.finite != 0;
    record.list.size = record.finite ? report.kept : 0;
    record.message.size = report.bytes;
    if (record.finite && report.lost != 0 && node.lost.indices != nullptr) {
      dropped_.push_back({node.lost.indices, node.lost.values, report.lost});
    }
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
                              .coded = to_decode(result),
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
