// Public surface: a sparse all-reduce whose lists of entries, too, stay on a device: they are sent
// from there, received there, merged there, and applied from there. The core says what is to be
// done with which list; whoever drives the device does it. Ranks of one group may mix such calls,
// detached ones (detached.hpp) and ordinary ones. The functions are in collectives.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

#include "gtopk/detached.hpp"
#include "gtopk/memory.hpp"

namespace gtopk {

/// A list where the device reads it: in its own memory, or in pinned memory of the host.
struct DeviceList {
  void* indices = nullptr;
  void* values = nullptr;
  std::uint64_t size = 0;
};

/// How a message has its list: as the wire of that name (wires()).
enum class ListFormat : std::uint8_t {
  kRaw,  ///< as it lies in memory
  kLossless,
  kBf16,
  kFp16,
  kInt8,
  k2Bit,
  kSign,
};

/// The message of a list from another rank, without its header: aligned to 8 bytes, and readable up
/// to a multiple of them. In the device's memory or in pinned memory.
struct CodedList {
  const std::byte* bytes = nullptr;  ///< null: there is none
  std::uint64_t size = 0;            ///< at least what the values of the list's entries take
  ListFormat format = ListFormat::kLossless;
};

struct ClosingReport {
  std::uint64_t kept = 0;  ///< entries of the message
  std::uint64_t lost = 0;
  std::uint64_t bytes = 0;   ///< of the message
  std::uint64_t finite = 1;  ///< 0: an entry became infinite, and nothing is kept
};

/// What makes a message of a list. Its values are rounded to what the format can hold; differences
/// are lost.
struct DeviceClosing {
  ListFormat format = ListFormat::kRaw;  ///< kRaw: there is nothing to be done
  DetachedEntries list{};
  std::uint64_t most = 0;                 ///< entries that it may have
  const SelectionReport* made = nullptr;  ///< how many it has; none if it is not finite
  /// With a format that rounds: room for `most` entries, neither of which is the list's. Entries
  /// that become zero are not kept.
  DetachedEntries kept{};
  DetachedEntries lost{};       ///< null: nobody wants it
  bool zeros_are_lost = false;  ///< what becomes zero is lost, too
  std::byte* message = nullptr;
  std::uint64_t message_bytes = 0;  ///< room for it, a multiple of 8
  ClosingReport* report = nullptr;  ///< in pinned memory
};

/// A node of the tree. The reports lie in pinned memory.
struct DeviceMerge {
  DeviceList mine;
  DeviceList theirs;
  /// If there is one, `theirs` is room for its entries, and gets them first.
  CodedList coded;
  /// Of the sum, the most entries that are kept, first in the selection order; with `unites` all
  /// are, zeros too.
  std::uint64_t keep = 0;
  bool unites = false;
  /// Room for min(keep, both) entries; with `unites` for both.
  DetachedEntries kept;
  /// Room for all; null: nobody wants them.
  DetachedEntries dropped;
  /// Of the sum; `finite` is 1 beforehand.
  SelectionReport* report = nullptr;
  /// 1 beforehand. Set to 0 if the indices of `theirs` do not ascend below d, or if it was coded
  /// and no rank's encoder writes that; nothing is kept then.
  std::uint64_t* sound = nullptr;
  DeviceClosing closing;  ///< of what is kept
};

/// A look at what is about to be the result. The reports lie in pinned memory, and are 1
/// beforehand.
struct DeviceInspection {
  DeviceList result;
  /// If there is one, `result` is room for its entries, and gets them first.
  CodedList coded;
  /// Set to 0 if its indices do not ascend below d, or if it was coded and damaged.
  std::uint64_t* sound = nullptr;
  /// Set to 0 if a value, divided and rounded, is not finite.
  std::uint64_t* fits = nullptr;
  /// Pinned memory for a copy; null: nobody wants it.
  DetachedEntries copy;
};

/// What does a call's work with lists. Called on the engine's thread, and must not block it: a
/// driver's function may. One piece of work at a time.
class ListDevice {
 public:
  /// To be called once, on any thread, when the device has done the work: with null, or with why it
  /// has not.
  using Done = std::function<void(std::exception_ptr)>;

  ListDevice() = default;
  ListDevice(const ListDevice&) = delete;
  ListDevice& operator=(const ListDevice&) = delete;
  ListDevice(ListDevice&&) = delete;
  ListDevice& operator=(ListDevice&&) = delete;
  virtual ~ListDevice() = default;

  /// Where the lists are, for messages.
  [[nodiscard]] virtual Memory memory() const = 0;
  virtual void close(const DeviceClosing& closing, Done done) = 0;
  virtual void merge(const DeviceMerge& node, Done done) = 0;
  virtual void inspect(const DeviceInspection& look, Done done) = 0;
};

/// How much room a call needs.
struct DeviceListRoom {
  std::uint64_t selected = 0;       ///< entries
  std::uint64_t device_bytes = 0;   ///< for received lists, nodes, and what they drop
  std::uint64_t pinned_bytes = 0;   ///< for headers, reports, and lists from ranks without a device
  std::uint64_t largest_merge = 0;  ///< entries of both lists together
  std::uint64_t largest_coded = 0;  ///< entries of a list that is coded; 0: none is
  std::uint32_t most_dropped = 0;   ///< lists that may come back to the residual
  std::uint64_t message_bytes = 0;  ///< the most of one list
  std::uint32_t index_bytes = 4;
};

/// What the device is to apply to residual and tensor, as commit() does (docs/algorithms.md), from
/// the lists where they lie. In pinned memory.
struct ListEdits {
  static constexpr std::size_t kMostDropped = 64;

  /// 0: the step did not happen; the tensor becomes NaN, and nothing else is applied.
  std::uint64_t happened = 0;
  /// 1: PutBack::kOwn.
  std::uint64_t put_back_own = 0;
  std::uint64_t dropped_lists = 0;
  DeviceList own;
  DeviceList result;
  DeviceList dropped[kMostDropped];
};

/// `selected` and `report` are read when the operation starts (Call::input): the entries of acc
/// that the call's rule selects (selection_rule.hpp), in the device's memory, and how many there
/// are. `edits` is written before it ends. All of it must stay valid until the operation is
/// destroyed.
struct ListsOnDevice {
  ListDevice* device = nullptr;
  DetachedEntries selected;
  const SelectionReport* report = nullptr;
  const SelectorState* next = nullptr;  ///< as of Detached
  std::byte* room = nullptr;            ///< in the device's memory, aligned to 256 bytes
  std::byte* pinned = nullptr;          ///< in pinned memory, aligned to 64 bytes
  ListEdits* edits = nullptr;
};

}  // namespace gtopk
