// GPU: one sparse all-reduce of tensors that stay on their device, as calls of the kernels: the
// work enqueued when the operation is called, the work that it requests while it runs, and the
// commit. The caller provides memory and streams.
//
// Before the operation, the kernels write its input to pinned memory: the entries that the rank
// selects (gtopk/detached.hpp), or sums of acc (gtopk/device_acc.hpp). Work that depends on the
// operation's number is enqueued once it has one, before it starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gtopk/collectives.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/acc_kernels.hpp"
#include "src/gpu/device_path.hpp"
#include "src/gpu/launcher.hpp"
#include "src/gpu/shared_workspace.hpp"

namespace gtopk::gpu {

/// Throws Failure unless a call of the kernels succeeded: "DEVICE cannot WHAT: ...".
void check_kernels(const cuda::Calls& kernels, int error, const std::string& device,
                   const char* what);

/// A step's blocks of memory, which the caller owns.
struct StepMemory {
  std::byte* pinned = nullptr;
  std::byte* device = nullptr;
  /// The owner of both blocks; a launcher releases it.
  std::shared_ptr<void> owner;
};

class Step {
 public:
  Step(const cuda::Calls& kernels, Launcher& launcher, const DevicePath& path);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  Step(Step&&) = delete;
  Step& operator=(Step&&) = delete;
  ~Step();

  [[nodiscard]] const DevicePath& path() const { return path_; }
  [[nodiscard]] std::size_t pinned_bytes() const;
  [[nodiscard]] std::size_t device_bytes() const;
  /// Sets the location of each piece of the tensor and of its residual, and the piece's size. Empty
  /// pieces may be left out.
  void lay_out(const StepMemory& memory, std::span<const cuda::PieceOf> pieces, void* momentum);
  /// Must be called before each step except the first.
  void reset() const { shared_.reset(); }

  // The functions below must be called after lay_out().
  /// The table in pinned memory; copy it to the beginning of the device's memory before begin().
  [[nodiscard]] std::span<const std::byte> table() const;
  /// The device memory that only begin() needs.
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// For `threshold`, the state to write before the selection; otherwise null.
  [[nodiscard]] SelectorState* last_state() const;

  void begin(void* scratch, Driver::Stream stream) const;
  /// Whether follow() has anything to do.
  [[nodiscard]] bool needs_seed() const { return path_.sums && path_.sums->needs_seed(); }
  /// Must be called once the operation has its number in its group, which is the seed unless
  /// options name one, and before it starts.
  void follow(std::uint64_t seed, Driver::Stream stream);

  /// Returns the operation.
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const;
  /// Enqueues the commit on the device, after the operation's end.
  void commit(Driver::Stream stream) const;

 private:
  void check(int error, const char* what) const;
  void select(void* scratch, Driver::Stream stream) const;
  void commit_edits(const Detached& edits, Driver::Stream stream) const;
  void commit_sums(Driver::Stream stream) const;
  void draw_and_gather(std::uint64_t seed, Driver::Stream stream) const;
  void sketch(std::uint64_t seed, Driver::Stream stream);

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const DevicePath path_;
  SharedWorkspace shared_;
  cuda::VectorOf acc_;
  void* momentum_ = nullptr;
  void* sketch_workspace_ = nullptr;
  std::unique_ptr<AccKernels> acc_kernels_;
};

}  // namespace gtopk::gpu
