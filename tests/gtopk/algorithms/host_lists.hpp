// Tests of the algorithms room: a device that keeps the lists of a sparse all-reduce, made of the
// kernels on the host executor. It does what it is asked for late (late_work.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/device_lists.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/element_types.hpp"
#include "tests/gtopk/algorithms/late_work.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse::testing {

inline constexpr Memory kDeviceMemory = cuda_memory(2);

/// One rank's.
class HostLists final : public ListDevice, public LateWork {
 public:
  /// `delivered`: where the result is to be recorded.
  HostLists(const reference::Problem& problem, support::Tensor& tensor, std::uint64_t seed,
            const Delivered& delivered = {})
      : problem_(problem),
        delivered_(delivered),
        ranks_(static_cast<std::uint32_t>(problem.ranks.size())),
        executor_(seed, 1 + seed % 3) {
    const auto room = device_list_room(problem.d, problem.type, problem.options, ranks_,
                                       delivered.values != nullptr);
    if (!room) {
      return;
    }
    room_ = *room;
    rule_ = selection_rule(problem.d, problem.type, problem.options).value();
    lists_.device = this;
    lists_.selected = {block(room_.selected * room_.index_bytes),
                       block(room_.selected * size_of(value_type()))};
    lists_.report = &report_;
    lists_.room = block(room_.device_bytes);
    lists_.pinned = block(room_.pinned_bytes);
    lists_.edits = &edits_;
    piece_.tensor = tensor.values.data();
    piece_.residual = tensor.residual ? tensor.residual->data() : nullptr;
    piece_.size = problem.d;
    acc_.dtype = problem.type;
    acc_.index_bytes = room_.index_bytes;
    acc_.pieces = &piece_;
    acc_.count = 1;
    acc_.d = problem.d;
    acc_.tiles =
        sparse::device::number_tiles(reinterpret_cast<sparse::device::Piece<float>*>(&piece_), 1);
    can_ = true;
  }

  /// Whether the problem can be called so.
  [[nodiscard]] bool can() const { return can_; }
  [[nodiscard]] const DeviceListRoom& room() const { return room_; }

  [[nodiscard]] Collective begin_and_call() {
    visit_floating(problem_.type, [&]<class T>() {
      cuda::SelectCall call;
      call.acc = acc_;
      call.rule = rule_;
      call.room = block(cuda::select_room<T>(acc_, rule_));
      call.kept = {lists_.selected.indices, lists_.selected.values, rule_.most};
      call.report = &report_;
      cuda::select<T>(executor_, call);
    });
    return gtopk::sparse_all_reduce(lists_, problem_.d, problem_.type, problem_.options,
                                    delivered_);
  }
  void commit() {
    visit_floating(problem_.type, [&]<class T>() {
      cuda::CommitListsCall call;
      call.acc = acc_;
      call.edits = &edits_;
      call.most_dropped = room_.most_dropped;
      call.divisor = divisor();
      cuda::commit_lists<T>(executor_, call);
    });
  }

  [[nodiscard]] std::uint64_t merges() const { return merges_; }
  [[nodiscard]] std::uint64_t inspections() const { return inspections_; }
  /// Of selections.
  [[nodiscard]] std::uint64_t closings() const { return closings_; }

  [[nodiscard]] Memory memory() const override { return kDeviceMemory; }

  void close(const DeviceClosing& closing, Done done) override {
    ++closings_;
    ask(std::move(done), [this, closing] {
      visit_floating(value_type(), [&]<class T>() { close_as<Accumulation<T>>(closing); });
    });
  }
  void merge(const DeviceMerge& node, Done done) override {
    ++merges_;
    ask(std::move(done), [this, node] {
      visit_floating(value_type(), [&]<class T>() {
        decode_as<Accumulation<T>>(node.coded, node.theirs, node.sound);
        merge_as<Accumulation<T>>(node);
        if (node.closing.format != ListFormat::kRaw) {
          close_as<Accumulation<T>>(node.closing);
        }
      });
    });
  }
  void inspect(const DeviceInspection& look, Done done) override {
    ++inspections_;
    ask(std::move(done), [this, look] {
      visit_floating(problem_.type, [&]<class T>() {
        decode_as<Accumulation<T>>(look.coded, look.result, look.sound);
        cuda::InspectCall call;
        call.checked = look.coded.bytes != nullptr ? 1 : 0;
        call.dtype = problem_.type;
        call.index_bytes = room_.index_bytes;
        call.list = {look.result.indices, look.result.values, look.result.size};
        call.d = problem_.d;
        call.divisor = divisor();
        call.sound = look.sound;
        call.fits = look.fits;
        call.copy = {look.copy.indices, look.copy.values, 0};
        cuda::inspect<T>(executor_, call);
      });
    });
  }

 private:
  static constexpr std::align_val_t kLine{256};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kLine); }
  };

  /// Exactly so much: a sanitizer sees what is written behind it.
  std::byte* block(std::size_t bytes) {
    return blocks_.emplace_back(static_cast<std::byte*>(::operator new(bytes, kLine))).get();
  }
  [[nodiscard]] DataType value_type() const { return accumulation_type(problem_.type); }
  [[nodiscard]] double divisor() const { return detached_divisor(problem_.options, ranks_); }

  std::byte* coding_room() {
    return block(cuda::coding_room(room_.largest_coded, room_.message_bytes));
  }

  template <class Value>
  void decode_as(const CodedList& coded, const DeviceList& list, std::uint64_t* sound) {
    if (coded.bytes == nullptr) {
      return;
    }
    cuda::DecodeCall call;
    call.values = value_type();
    call.index_bytes = room_.index_bytes;
    call.coded = coded;
    call.d = problem_.d;
    call.room = coding_room();
    call.list = {list.indices, list.values, list.size};
    call.sound = sound;
    cuda::decode<Value>(executor_, call);
  }

  template <class Value>
  void close_as(const DeviceClosing& closing) {
    cuda::CloseCall call;
    call.values = value_type();
    call.index_bytes = room_.index_bytes;
    call.closing = closing;
    call.room = coding_room();
    cuda::close<Value>(executor_, call);
  }

  template <class Value>
  void merge_as(const DeviceMerge& node) {
    cuda::MergeCall call;
    call.values = value_type();
    call.index_bytes = room_.index_bytes;
    call.a = {node.mine.indices, node.mine.values, node.mine.size};
    call.b = {node.theirs.indices, node.theirs.values, node.theirs.size};
    call.k = node.keep;
    call.unites = node.unites ? 1 : 0;
    call.room = block(cuda::merge_room<Value>(room_.index_bytes, room_.largest_merge));
    call.kept = {node.kept.indices, node.kept.values, 0};
    call.dropped = {node.dropped.indices, node.dropped.values, 0};
    call.report = node.report;
    call.sound = node.sound;
    call.d = problem_.d;
    call.checked = node.coded.bytes != nullptr ? 1 : 0;
    cuda::merge<Value>(executor_, call);
  }

  const reference::Problem& problem_;
  const Delivered delivered_;
  const std::uint32_t ranks_;
  HostExecutor executor_;
  bool can_ = false;
  DeviceListRoom room_;
  SelectionRule rule_;
  SelectionReport report_;
  ListEdits edits_;
  ListsOnDevice lists_;
  cuda::PieceOf piece_;
  cuda::VectorOf acc_;
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::uint64_t merges_ = 0;
  std::uint64_t inspections_ = 0;
  std::uint64_t closings_ = 0;
};

}  // namespace gtopk::sparse::testing
