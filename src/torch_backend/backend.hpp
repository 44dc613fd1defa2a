// Torch backend: gtopk as a c10d backend. It translates tensors and options; the core defines the
// collectives. A virtual function of c10d::Backend that is not overridden here is not implemented;
// torch's default raises an error that names it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtopk/communicator.hpp"
#include "src/torch_backend/runtime.hpp"
#include "src/torch_backend/torch_headers.hpp"
#include "src/torch_backend/window.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {

class SparseOnDevice;
struct DeviceTensors;

/// Optional extras of a call of the core.
struct CallExtras {
  std::uint64_t* number = nullptr;    ///< set to the collective's number; only for device tensors
  std::shared_ptr<void> keepalive{};  ///< owns memory, in addition to the Work
};

class GtopkBackend final : public c10d::Backend {
 public:
  /// Options of a new backend.
  struct BackendOptions {
    c10::intrusive_ptr<c10d::Store> store;
    int rank;
    int size;
    std::chrono::milliseconds timeout;
    std::string group_name;
    bool reconfigurable = false;  ///< meets no rank before reconfigure()
  };
  /// Meets the other ranks; blocks. Must be called without the GIL. numbered() finds the backend by
  /// its number.
  [[nodiscard]] static c10::intrusive_ptr<GtopkBackend> make(const BackendOptions& options);
  /// Returns the backend of that number, never null: throws DistBackendError if it no longer
  /// exists.
  [[nodiscard]] static c10::intrusive_ptr<GtopkBackend> numbered(std::int64_t number);
  [[nodiscard]] static std::vector<c10::intrusive_ptr<GtopkBackend>> living();
  explicit GtopkBackend(const BackendOptions& options);
  GtopkBackend(const GtopkBackend&) = delete;
  GtopkBackend& operator=(const GtopkBackend&) = delete;
  GtopkBackend(GtopkBackend&&) = delete;
  GtopkBackend& operator=(GtopkBackend&&) = delete;
  ~GtopkBackend() override;

  const std::string getBackendName() const override { return "gtopk"; }
  /// Returns a copy, because torch writes into the options that it passes to split().
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
#if TORCH_VERSION_MINOR >= 14
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override {
    state_->extend(timeout);
  }
#endif

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
#if TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<c10d::Work> gather_single(at::Tensor& output, at::Tensor& input,
                                               const c10d::GatherOptions& opts) override;
#endif
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  /// A barrier whose timeout error names all missing ranks on every rank present, so
  /// `wait_all_ranks` has no effect. Blocks.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // A window: operations called in it start at once, and endCoalescing() returns one Work for all
  // of them. A nested start joins the open window, and the first end closes it. After a call that
  // raised, the window stays open, but a new start leaves it and opens another.
  //
  // supportsCoalescing() stays false, because otherwise torch would open a window for each
  // batch_isend_irecv(). While a window is open, torch sets aside everything that any thread calls
  // in the group. If the batch raises, torch does so forever, and later collectives return without
  // having run.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  /// See gtopk.sparse_all_reduce. Several tensors, each contiguous, are pieces of one vector; the
  /// residual then has one dimension. `delivered` is {indices, values}, of int64 and the
  /// accumulation type, which record the result; see gtopk::Delivered. `state` holds the numbers of
  /// a SelectorState and replaces options.state. `momentum` has the residual's shape and replaces
  /// options.momentum.
  c10::intrusive_ptr<c10d::Work> sparse_all_reduce(const std::vector<at::Tensor>& tensors,
                                                   const std::optional<at::Tensor>& residual,
                                                   SparseOptions options,
                                                   std::optional<std::chrono::milliseconds> timeout,
                                                   const std::vector<at::Tensor>& delivered,
                                                   const std::optional<at::Tensor>& state,
                                                   const std::optional<at::Tensor>& momentum);

  /// See gtopk.plan; `like` has the type of the tensor to reduce. Blocks.
  [[nodiscard]] PlanReport plan(std::uint64_t d, const at::Tensor& like,
                                const SparseOptions& options, bool anew);
  /// The report of the last `auto` to end.
  [[nodiscard]] std::optional<PlanReport> last_plan();

  /// COMM_ERROR or TIMEOUT once the group has failed, for example because a rank died. A mismatch
  /// does not count, because a group survives it.
  c10d::ErrorType getError() override;

  // Splitting makes a backend for some of the ranks, in a given order. These meet in the store; the
  // other ranks get null at once. A group bound to a device makes its subgroups with new_group(),
  // because torch would call a method that backends outside torch cannot have.
  bool supportsSplitting() const override { return !getBoundDeviceId().has_value(); }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& opts, const int& rank,
                                    const int& size) override;

#if TORCH_VERSION_MINOR >= 14
  // Reconfiguring replaces the group's ranks by others or by the same ones. Operations in flight
  // fail, and the numbering of collectives restarts. A handle is a random name; ranks meet in the
  // store under the uuid.
  bool supportsReconfigure() const override { return backend_options_.reconfigurable; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

  // Abort hooks run on the thread that calls abort(), or before the end of the Work whose failure
  // ended the group.
#if TORCH_VERSION_MINOR >= 14
  void registerAbortHook(int64_t id, std::function<void()> hook) override {
    state_->add_abort_hook(id, std::move(hook));
  }
  void unregisterAbortHook(int64_t id) override { state_->remove_abort_hook(id); }
#endif
#if TORCH_VERSION_MINOR >= 15
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override { state_->remove_completion_hook(id); }
#endif
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}  // they are always timed

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override;
  void shutdown() override;
  /// See Process::set_last_words.
  void set_last_words(const std::string& text);
  /// Called when only weak references remain: drops the reference for numbered(), which would keep
  /// store and hooks alive.
  void release_resources() override;

  /// A number that is unique among this process's backends and never reused.
  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] Statistics statistics();
  [[nodiscard]] std::string transport();
  /// See Process::flight_record(); covers all groups of this process.
  [[nodiscard]] std::string flight_record();

 private:
  /// The objects that a member of the group owns until it leaves. Users of the communicator share
  /// ownership of all of them, because operations end through the runtime's completer.
  struct Membership {
    Membership(std::shared_ptr<Runtime> running, const Meeting& meeting)
        : runtime(std::move(running)), communicator(runtime->process, meeting) {}

    std::shared_ptr<Runtime> runtime;
    Communicator communicator;  // destroyed first
  };

  /// Meets `size` ranks in the store.
  [[nodiscard]] std::shared_ptr<Membership> join(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::string& name, int rank, int size,
                                                 std::chrono::milliseconds timeout) const;
  /// This rank's membership; throws an error if this rank is no longer a member.
  [[nodiscard]] std::shared_ptr<Membership> membership();
  /// Throws unless this rank is still a member. Must be called with mutex_ held.
  void check_member() const;
  /// Does the same for a call that has waited: also throws if the group has changed since the call.
  void check_same_member(const std::shared_ptr<Membership>& member) const;
  void check_not_forked() const;
  /// All-reduces sparse COO tensors.
  c10::intrusive_ptr<c10d::Work> allreduce_coo(std::vector<at::Tensor>& tensors,
                                               const c10d::AllreduceOptions& opts);
  /// Returns null for tensors that are not on a device, or that are staged through host memory.
  [[nodiscard]] std::shared_ptr<SparseOnDevice> on_device(const DeviceTensors& tensors,
                                                          const SparseOptions& options) const;
  c10::intrusive_ptr<c10d::Work> sparse_all_reduce_on_device(
      const std::shared_ptr<SparseOnDevice>& step, const DeviceTensors& tensors,
      const SparseOptions& options, std::chrono::milliseconds timeout,
      const std::vector<at::Tensor>& delivered, std::vector<Contiguous> at);
  /// Whether the transport takes device memory, for messages with that rank or with all.
  [[nodiscard]] bool takes_devices(std::optional<int64_t> other = std::nullopt);
  /// Whether the core can use the tensor's own memory, for messages with that rank or with all.
  /// `copied` is the number of bytes that the core copies in any case.
  [[nodiscard]] Staging staging_of(const at::Tensor& tensor,
                                   std::optional<int64_t> other = std::nullopt,
                                   std::size_t copied = kShortMessage);
  /// Returns a function that aborts the group, unless this rank has left it by then. Must be called
  /// with mutex_ held.
  [[nodiscard]] gpu::Watch::Failed ending_group() const;
  /// Makes a message from or to host memory wait for earlier ones whose device memory is not ready.
  /// `last` is the gate of the last device message in this direction.
  static void keep_order(Call& call, std::shared_ptr<Gate>& last);
  using Make = std::function<Collective()>;
  /// Runs the collective that `make` returns as a new Work, when its turn comes; see CallOrder.
  /// Translates errors.
  c10::intrusive_ptr<c10d::Work> run(c10::intrusive_ptr<GtopkWork> work,
                                     std::chrono::milliseconds timeout, const Make& make,
                                     const CallExtras& extras = {});
  // These must be called with mutex_ held.
  std::uint64_t start(GtopkWork& work, std::chrono::milliseconds timeout, Collective collective,
                      const CallExtras& extras);
  void defer(const c10::intrusive_ptr<GtopkWork>& work, std::chrono::milliseconds timeout,
             Collective collective, const CallExtras& extras);
  /// Waits for its turn, without the lock, and then starts.
  std::uint64_t start_in_turn(std::unique_lock<std::mutex>& lock, GtopkWork& work,
                              std::chrono::milliseconds timeout, Collective collective,
                              const CallExtras& extras);
  /// Aborts the group for this reason.
  void abort_because(ErrorKind kind, const std::string& reason);

  const std::int64_t number_;
  std::mutex mutex_;  // also keeps operation numbers equal to the core's
  std::shared_ptr<Membership> membership_;
  c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  Window window_;
  std::shared_ptr<UnseenError> unseen_ = std::make_shared<UnseenError>();
  // These are the inputs of the last send from a device and of the last receive to one. They are
  // guarded by mutex_.
  std::shared_ptr<Gate> last_sent_;
  std::shared_ptr<Gate> last_received_;
  const BackendOptions backend_options_;
  const std::string handle_;         ///< for the caller of reconfigure()
  std::set<std::int64_t> meetings_;  ///< the uuids passed to reconfigure()
  std::string meeting_failed_;       ///< why the last one failed; else empty; under mutex_
  const std::shared_ptr<GroupState> state_ = std::make_shared<GroupState>();
  int forks_;
};

}  // namespace gtopk::torch_backend
