// Sparse, algorithms room: the lists of one exchange that lie on a device: where each is, what is
// known of it, and the merge under way. It decides nothing about messages and the order of a walk;
// what the device does is behind gtopk::ListDevice.
//
// A merge is begun when a walk asks for it, and returns a list at once: one with a number, of which
// the size is known once the device has told. Whoever needs it, to send it or to merge it again,
// awaits merged() first. If the wire codes, a list that is made here becomes a message at once, in
// the same turn of the device, and one that was received stays a message until it is merged or is
// the result: it is passed on as it came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gtopk/device_lists.hpp"
#include "src/engine/errand.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/list_plan.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {

/// The room of an exchange among so many ranks; `noted`: the host wants a copy of the result. Pure.
[[nodiscard]] DeviceListRoom room_on_device(const ListPlan& plan, std::uint32_t ranks, bool noted);

class DeviceNodes {
 public:
  DeviceNodes(engine::GroupView& group, const ListPlan& plan, const ListsOnDevice& step, bool noted)
      : group_(group),
        plan_(plan),
        step_(step),
        room_(room_on_device(plan, group.size(), noted)),
        noted_(noted) {}

  /// This rank's selection, rounded and coded as the wire does; under way like a merge if so.
  /// Throws std::logic_error if it is longer than it may be.
  [[nodiscard]] List own();
  /// Room for so many entries of a list from that rank, to be filled in.
  [[nodiscard]] List received(std::uint32_t from, std::size_t size);
  /// Room for a coded list without its header.
  [[nodiscard]] Bytes coded_room(std::size_t bytes) {
    return {take(on_device_, bytes), bytes, memory()};
  }
  /// Of so many entries, in a coded_room(), or behind the header in a message_room(); it has been
  /// checked by Codec::check().
  [[nodiscard]] List received_coded(std::uint32_t from, std::size_t size, Bytes message,
                                    bool unrounded);
  /// Pinned memory for a whole message: a rank whose lists are in host memory sends one.
  [[nodiscard]] std::span<std::byte> message_room(std::size_t bytes) {
    return {take(pinned_, bytes), bytes};
  }

  /// Begins the node above two lists, of which each is on the device or in a message_room(). None
  /// may be under way. `answers`: this rank is responsible for what the node drops.
  [[nodiscard]] List merge(const List& mine, const List& theirs, std::uint64_t keep, bool answers);
  /// Completes when the device has told of the last merge. Throws Error{kMismatch} if the list from
  /// another rank was damaged.
  [[nodiscard]] engine::Task<void> merged();
  /// A copy of the result here, if one was to be made. After inspected().
  [[nodiscard]] const List& copy() const { return copy_; }
  /// Whether the result is finite, and all of it is once divided and rounded. Throws
  /// Error{kMismatch} if it came damaged from another rank. After merged().
  [[nodiscard]] engine::Task<bool> inspected(List result);

  // After merged().
  /// The list with its size and whether it is finite.
  [[nodiscard]] List settled(const List& list) const;
  /// If it is coded and not empty: all but its header.
  [[nodiscard]] ConstBytes message_of(const List& list) const;
  [[nodiscard]] Memory memory() const { return step_.device->memory(); }
  /// What is to be applied.
  void write_edits(const List& own, const List& result, PutBack put_back, bool happened) const;

 private:
  /// Part of the one block of a kind that the caller has handed in.
  struct Taken {
    std::byte* begin;
    std::size_t bytes;
    std::size_t alignment;
    std::size_t taken = 0;
  };
  /// Reports of one turn of the device.
  struct Reports {
    SelectionReport selection;
    ClosingReport closing;
    std::uint64_t sound;
    std::uint64_t fits;
  };
  struct Record {
    DeviceList list{};
    bool finite = true;
    std::optional<std::uint32_t> from = std::nullopt;  ///< whose indices nobody has checked
    bool rounded = true;
    bool decoded = true;  ///< false: the list is room for what the message says
    CodedList message{};
    Memory message_memory{};
  };
  struct Node {
    std::size_t record;
    Reports* reports;
    DeviceList dropped;  ///< of an unknown size
    DeviceList lost;
    bool merges;
    bool closes;
    std::optional<std::uint32_t> from;
  };

  friend DeviceListRoom room_on_device(const ListPlan& plan, std::uint32_t ranks, bool noted);

  /// Throws std::logic_error if that is more than room_on_device() says.
  static std::byte* take(Taken& from, std::size_t bytes);
  [[nodiscard]] static std::size_t bytes_of(const ListPlan& plan, std::uint64_t entries);
  [[nodiscard]] DetachedEntries take_entries(std::uint64_t count);
  [[nodiscard]] Reports* take_reports();
  /// What makes a message of up to `most` entries, which is noted. `room`: of those entries.
  [[nodiscard]] DeviceClosing closing(Record& record, const Codec& codec,
                                      const DetachedEntries& room, std::uint64_t most, bool answers,
                                      Reports& reports);
  /// Of nodes.
  [[nodiscard]] static const Codec& node_codec(const ListPlan& plan);
  [[nodiscard]] DetachedEntries unrounded_room();
  /// Its message, if the list is still to be decoded; whoever asks does that.
  [[nodiscard]] CodedList to_decode(const List& list);
  [[nodiscard]] List note(const Record& record);
  [[nodiscard]] const Record& record_of(const List& list) const {
    return records_.at(list.there - 1);
  }
  [[nodiscard]] DeviceList place_of(const List& list) const;
  void check_sound(std::uint64_t sound, std::optional<std::uint32_t> from) const;
  void settle();

  engine::GroupView& group_;
  const ListPlan plan_;
  const ListsOnDevice step_;
  const DeviceListRoom room_;
  const bool noted_;
  List copy_;
  Taken on_device_{step_.room, room_.device_bytes, 256};
  Taken pinned_{step_.pinned, room_.pinned_bytes, 64};
  DetachedEntries unrounded_;  ///< room for what a merge keeps, until it is rounded
  std::vector<Record> records_;
  std::vector<DeviceList> dropped_;
  std::optional<Node> node_;  ///< under way
  std::optional<engine::Errand> working_;
};

}  // namespace gtopk::sparse
