// Engine: one collective or point-to-point transfer in flight. It owns everything that must outlive
// an early end: the coroutine, the requests still pending in the network, the buffers they use, and
// the caller's memory.
//
// An operation fails at once for its caller (fail() resumes the coroutine with the cause) but is
// destroyed only when the network no longer uses its buffers.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/error.hpp"
#include "src/engine/buffer_pool.hpp"
#include "src/engine/message_slots.hpp"
#include "src/engine/observer.hpp"
#include "src/engine/task.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/request.hpp"

namespace gtopk::engine {

class Engine;
class Group;
class GroupView;
class Operation;

struct ExternalWorkState;  // defined in external_work.hpp
/// Detaches that work from its operation, so that it notifies no one.
void leave_alone(ExternalWorkState& external_work);

/// A collective, and its caller's settings.
struct OperationSpec : Collective {
  OperationSpec() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): the collective is the call
  OperationSpec(Collective collective) : Collective(std::move(collective)) {}

  transport::Duration timeout{};
  /// Called once, on the engine thread; null means success. Exceptions that it throws are logged.
  std::function<void(std::exception_ptr)> done;
  /// Owner of the caller's memory.
  std::shared_ptr<void> keepalive;

  [[nodiscard]] bool point_to_point() const { return ordering == Ordering::kUnnumbered; }
};

/// The memory that operations use while in flight. It grows as needed and is passed from one
/// operation to the next, so that the steady state does not allocate. Memory that a large operation
/// needed beyond the bound is freed with it.
struct OperationStorage {
  MessageSlots slots;
  std::vector<BufferPool::Buffer> buffers;

  /// Frees memory beyond the bound; returns whether another operation may use the rest.
  [[nodiscard]] bool recycle();
};

/// A point-to-point message that the operation sends.
struct Transfer {
  std::uint32_t to;  ///< receiver's rank in the group
  std::int32_t tag;  ///< the user's tag
  std::uint32_t serial;
  std::uint64_t ahead;  ///< bytes that it counts in the window; see FlowControl
  std::uint64_t apart;  ///< bytes sent separately from its header
  bool left = false;    ///< its header has been sent
};

class Operation {
 public:
  enum class State : std::uint8_t { kWaiting, kRunning, kProbing, kLingering };

  /// `queued` is the time of the call.
  Operation(Engine& engine, std::shared_ptr<Group> group, std::uint64_t sequence,
            transport::TimePoint queued, OperationSpec spec);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  Operation(Operation&&) = delete;
  Operation& operator=(Operation&&) = delete;
  ~Operation();

  void start();
  /// Resumes all awaiters with the cause; the first cause wins. A header that may be on its way is
  /// still awaited, on behalf of the next receive; the caller is notified meanwhile.
  void fail(const Error& cause);

  [[nodiscard]] Engine& engine() const { return engine_; }
  [[nodiscard]] Group& group() const { return *group_; }
  [[nodiscard]] const std::shared_ptr<Group>& shared_group() const { return group_; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  [[nodiscard]] const OperationSpec& spec() const { return spec_; }
  [[nodiscard]] const std::optional<Error>& cause() const { return cause_; }
  [[nodiscard]] bool body_done() const { return body_.started() && body_.done(); }
  /// Whether no part of it is in the network or on another thread.
  [[nodiscard]] bool quiet() const { return pending_ == 0 && computing_ == 0; }
  /// The operation as text: "all_reduce(gtopk) #17", or "recv(from 1, tag 7)".
  [[nodiscard]] std::string title() const;
  /// The same with its group: "all_reduce(gtopk) #17 of group 'default' on rank 2".
  [[nodiscard]] std::string label() const;
  /// The ranks whose messages have not arrived or, if `sends`, the ranks that have not received
  /// ours.
  [[nodiscard]] std::vector<std::uint32_t> waits_for(bool sends) const;
  /// The ranks of both kinds.
  [[nodiscard]] std::vector<std::uint32_t> waits_for() const;

  // The following are used by GroupView and its awaitables.
  MessageSlot& send(std::uint32_t to, transport::Tag tag, ConstBytes data,
                    std::uint32_t connection = 0);
  MessageSlot& recv(std::uint32_t from, transport::Tag tag, Bytes buffer);
  /// Adds a message that is posted when its receiver clears it; see FlowControl.
  MessageSlot& hold(std::uint32_t to, std::uint32_t serial, transport::Tag tag, ConstBytes data);
  void post_held(MessageSlot& slot, transport::Tag tag, ConstBytes data);
  void release(MessageSlot& slot);
  std::optional<Transfer> transfer;  ///< empty once its header could not be sent
  /// The payload announced by the header that the operation received.
  std::optional<transport::Tag> announced;
  bool takes = false;  ///< whether it is a receive that has found its message
  [[nodiscard]] std::byte* buffer(std::size_t bytes);
  /// Notifies observers that a phase begins; `phase` must have static lifetime.
  void enter(std::string_view phase);
  /// What this rank called, as text.
  [[nodiscard]] std::string call() const {
    return spec_.agreement.empty() ? spec_.name : spec_.agreement.text();
  }
  void agree_on(const Agreement& agreement) {
    spec_.agreement = agreement;
    fingerprint_ = agreement.fingerprint();
  }
  /// The fingerprint of what this rank called.
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }
  /// Asks that rank what it called; resumes the waiter once others_call is set.
  void ask(std::uint32_t rank, std::coroutine_handle<> waiter);
  /// The answer of the rank that was asked last.
  std::string others_call;
  void compute(std::coroutine_handle<> waiter, std::function<void()> work);
  std::exception_ptr compute_error;
  // The following are used by ExternalWork.
  void external_work_begun(std::shared_ptr<ExternalWorkState> external_work);
  void external_work_ended(const ExternalWorkState& external_work);
  /// Whether something outside the engine works for it.
  [[nodiscard]] bool on_external_work() const { return !external_work_.empty(); }
  std::coroutine_handle<> turn_waiter;
  std::coroutine_handle<> external_work_waiter;
  std::coroutine_handle<> gate_waiter;
  std::optional<std::uint32_t> in_line_for;  ///< the rank whose message an earlier receive awaits

  // The following are used by the engine.
  /// Takes the ranks whose messages have not fitted since the last call, so that they can be asked
  /// what they called.
  [[nodiscard]] std::vector<std::uint32_t> take_questions() {
    return std::exchange(questions_, {});
  }
  void answer(std::uint32_t rank, const std::string& call);
  /// Must be called when that rank has left. Everything it had sent has arrived, so receives from
  /// it are cancelled. Messages to it that are in doubt have not been received.
  void peer_left(std::uint32_t rank);
  /// Marks messages to and from that rank as no longer in doubt.
  void peer_lives(std::uint32_t rank);
  /// Whether it ended without knowing if the receiver of a sent message is still alive.
  [[nodiscard]] bool sent_in_doubt() const { return sent_in_doubt_; }
  /// The departure of a rank as text: "rank 3 (...) has left (...)".
  [[nodiscard]] std::string departure_of(std::uint32_t rank) const;
  /// The result for the caller, after the body's end. A cause passed to fail() takes precedence
  /// over the body's exception.
  [[nodiscard]] std::optional<Error> take_result();
  /// Notifies the caller and the observers, once. Their exceptions are logged.
  void tell(const std::optional<Error>& result);
  /// The operation at a point in time, as observers see it.
  [[nodiscard]] OperationEvent event(transport::TimePoint at) const;
  State state = State::kWaiting;
  std::list<std::unique_ptr<Operation>>::iterator place;  ///< position among those in flight
  transport::TimePoint called{};
  transport::TimePoint deadline{};
  transport::Duration waited{};  ///< from the call to the probe
  std::optional<transport::TimePoint>
      asked;                         ///< while lingering: when peers that do not receive were asked
  transport::TimePoint probed{};     ///< when the probe began
  std::vector<bool> answered;        ///< while probing, indexed by rank
  std::vector<std::string> answers;  ///< while probing, indexed by rank
  bool took = false;                 ///< the value of `takes` when the probe began

 private:
  [[nodiscard]] OperationStorage& storage();
  template <class F>
  void for_each_slot(F f) const {
    if (storage_) {
      storage_->slots.for_each(f);
    }
  }
  MessageSlot& take_slot(bool receive, std::uint32_t rank);
  /// Throws Error{kPeerFailed} if the rank has left.
  void expect_member(std::uint32_t rank) const;
  void post(MessageSlot& slot, transport::Tag tag, ConstBytes data);
  /// Makes the memory ready for a message; throws Error{kUnsupported} if the transport does not
  /// take it.
  void enter(Memory memory, std::uint32_t rank);
  static void completed(transport::Request& request);
  void withdraw_from_departed(MessageSlot& slot);

  Engine& engine_;
  std::shared_ptr<Group> group_;
  std::uint64_t number_;
  std::uint64_t sequence_;
  transport::TimePoint queued_;
  transport::TimePoint started_{};
  bool ran_ = false;
  bool told_ = false;
  std::string_view phase_;
  transport::TimePoint phase_began_{};
  OperationSpec spec_;
  std::uint64_t fingerprint_;
  std::unique_ptr<GroupView> view_;
  Task<void> body_;
  std::optional<Error> cause_;
  /// Null before the first message or buffer, because many receives may wait behind each other.
  std::unique_ptr<OperationStorage> storage_;
  std::vector<std::uint32_t> questions_;
  std::coroutine_handle<> answer_waiter_;
  bool sent_in_doubt_ = false;
  std::size_t pending_ = 0;
  std::size_t computing_ = 0;
  std::vector<std::shared_ptr<ExternalWorkState>> external_work_;  // each counts as a computation
};

}  // namespace gtopk::engine
