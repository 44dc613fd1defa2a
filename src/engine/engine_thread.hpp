// Engine: the thread that runs an engine over a real transport, and how it sleeps.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "src/engine/compute.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/polling.hpp"
#include "src/engine/shared_deadline.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class EngineThread {
 public:
  /// Calls `make` on the engine thread, the only one to use the transport. Rethrows its exceptions.
  /// key: null if the job has no secret.
  explicit EngineThread(const std::function<std::unique_ptr<transport::Transport>()>& make,
                        std::shared_ptr<const transport::JobKey> key = nullptr);
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  EngineThread(EngineThread&&) = delete;
  EngineThread& operator=(EngineThread&&) = delete;
  /// Waits up to `patience` for operations in flight and the peers' goodbyes, then closes. Never
  /// call it on the engine thread.
  ~EngineThread();

  [[nodiscard]] Engine& engine() const { return *engine_; }
  /// Transport::address(), card(), self() and describe(), cached.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const std::string& card() const { return card_; }
  [[nodiscard]] const transport::PeerInfo& self() const { return self_; }
  [[nodiscard]] const std::string& description() const { return description_; }

  /// Whether a thread that waits for an operation should poll for a moment before it sleeps, as the
  /// engine thread does now. Any thread.
  [[nodiscard]] bool polling_pays() const { return polling_.pays(); }

  /// Runs `work` on the engine thread and waits until it ends; rethrows its exception.
  void call(const std::function<void()>& work);

  static constexpr std::size_t kMostDirectories = 8;
  /// How this process has left.
  struct Departure {
    std::string last_words;
    bool first = true;  ///< no peer has left before
  };
  using Announce = std::function<void(const Departure&)>;

  /// Call on the engine thread. `announce` is called when this process leaves, on a thread that may
  /// block, unless every peer has left before or was notified. It replaces an earlier one for that
  /// `directory`. Beyond kMostDirectories, the oldest is dropped.
  void announce_departure(const void* directory, Announce announce);

  /// Waits until the group is idle, for at most `patience`, which stuck groups share, and not for
  /// gates that this process does not decide in the meantime. Never call it on the engine thread.
  void let_end(const std::shared_ptr<Group>& group);

  /// How long let_end() and the destructor wait, together if one follows the other, for operations
  /// in flight and then for the peers' goodbyes.
  transport::Duration patience = std::chrono::seconds(2);

 private:
  void loop();
  void leave();
  void announce();
  /// Calls step() until `done` returns true or `at_most` has passed.
  void step_until(const std::function<bool()>& done, transport::Duration at_most);
  /// One step, and a pause if there was nothing to do. `worked`: when there last was work.
  void advance(transport::TimePoint& worked);
  void idle(transport::TimePoint worked);
  /// Ends polling begun by idle(), if any. `found`: whether it ends because there is work.
  void end_look(bool found);

  // Members are destroyed from last to first: the thread is joined, then running jobs end, then the
  // operations that wait for them.
  transport::SteadyClock clock_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Engine> engine_;
  std::deque<std::pair<const void*, Announce>> announcements_;
  ComputeThread compute_;
  Lookups lookups_;
  std::string address_;
  std::string card_;
  transport::PeerInfo self_;
  std::string description_;
  SharedDeadline shared_deadline_;
  Polling polling_;
  // Engine thread only.
  std::optional<transport::TimePoint> looking_since_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gtopk::engine
