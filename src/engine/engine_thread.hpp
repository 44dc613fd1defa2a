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
  /// Calls `make` on the engine thread, which is the only one to use the transport. Rethrows its
  /// exceptions. `key` is null if the job has no secret.
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
  /// Cached results of Transport::address(), card(), self() and describe().
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const std::string& card() const { return card_; }
  [[nodiscard]] const transport::PeerInfo& self() const { return self_; }
  [[nodiscard]] const std::string& description() const { return description_; }

  /// Whether a thread that waits for an operation should poll for a moment before it sleeps, as the
  /// engine thread currently does. May be called on any thread.
  [[nodiscard]] bool polling_pays() const { return polling_.pays(); }

  /// Runs `work` on the engine thread and waits until it ends; rethrows its exception.
  void call(const std::function<void()>& work);

  static constexpr std::size_t kMostDirectories = 8;
  /// The way in which this process has left.
  struct Departure {
    std::string last_words;
    bool first = true;  ///< no peer has left before
  };
  using Announce = std::function<void(const Departure&)>;

  /// Must be called on the engine thread. When this process leaves, `announce` is called on a
  /// thread that may block, unless every peer has left before or was notified. It replaces an
  /// earlier `announce` for that `directory`. Beyond kMostDirectories, the oldest is dropped.
  void announce_departure(const void* directory, Announce announce);

  /// Waits until the group is idle, for at most `patience`, which stuck groups share. It does not
  /// wait for gates that this process leaves undecided in the meantime. Never call it on the engine
  /// thread.
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
  /// Runs one step, and pauses if there was nothing to do. `worked` is the time of the last work.
  void advance(transport::TimePoint& worked);
  void idle(transport::TimePoint worked);
  /// Ends polling begun by idle(), if any. `found` tells whether it ends because there is work.
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
  // The following is used only on the engine thread.
  std::optional<transport::TimePoint> looking_since_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gtopk::engine
