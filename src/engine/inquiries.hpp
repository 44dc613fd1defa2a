// Engine: asks the directory about peers: the addresses of peers about to be contacted, and whether
// peers that have not answered have left. A peer that has answered says goodbye itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/group_table.hpp"
#include "src/engine/lookup.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/scheduler.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Inquiries {
 public:
  /// The time from the first contact with a peer to the first question whether it has left, while
  /// an operation waits for it. It doubles each time, up to kLongestPause.
  static constexpr transport::Duration kFirstPause = std::chrono::milliseconds(50);
  static constexpr transport::Duration kLongestPause = std::chrono::seconds(1);
  /// How long messages wait for an address after the directory has failed. The directory may be
  /// served by a rank that is exiting, whose end explains more than the directory's.
  static constexpr transport::Duration kDirectoryPatience = std::chrono::seconds(2);
  /// The time from an error of the directory until it is asked again whether peers have left. A
  /// question that it does not answer delays questions for addresses.
  static constexpr transport::Duration kDirectoryPause = std::chrono::seconds(10);

  struct Hooks {
    /// Called if the directory says that the peer has left in order.
    std::function<void(transport::PeerId, const std::string& last_words)> left;
    std::function<void(transport::PeerFailure)> failed;
    /// Runs work on the engine thread. May be called on any thread.
    std::function<void(std::function<void()>)> post;
  };

  /// If `lookups` is null, nothing is asked.
  Inquiries(transport::Transport& transport, const transport::Clock& clock,
            const GroupTable& groups, const Scheduler& scheduler, Membership& membership,
            Lookups* lookups, Hooks hooks)
      : transport_(transport),
        clock_(clock),
        groups_(groups),
        scheduler_(scheduler),
        membership_(membership),
        lookups_(lookups),
        hooks_(std::move(hooks)) {}

  /// Looks up the peer's address, which the transport needs.
  void look_up(transport::PeerId peer);
  /// Begins inquiries about peers that were contacted and have not answered yet.
  void begin();
  /// Whether the failed peer may have left in order. If so, the directory is asked, and a hook
  /// called with the answer.
  [[nodiscard]] bool examine(const transport::PeerFailure& failure);
  /// Must be called when a peer that is not in doubt has sent its address.
  void address_came(transport::PeerId peer);

  void check(transport::TimePoint now);
  /// The time at which check() must be called.
  [[nodiscard]] transport::TimePoint next_check() const;

 private:
  struct Inquiry {
    transport::PeerId peer = 0;
    bool asking = false;
    transport::TimePoint due{};
    transport::Duration pause = kFirstPause;
    std::optional<transport::TimePoint> wants_address{};  ///< since when the transport has needed
                                                          ///< it
    std::optional<transport::PeerFailure> failure{};      ///< the failure being examined
    bool ended = false;  ///< whether the process had ended at the last question
  };

  [[nodiscard]] Inquiry& found_or_made(transport::PeerId peer);
  void ask(Inquiry& inquiry);
  void ask_later(Inquiry inquiry);
  /// `error` says why the directory did not answer, or is empty.
  void judge(transport::PeerId peer, const PeerRecord& record, const std::string& error);
  void take_address(Inquiry& inquiry, const PeerRecord& record, const std::string& error);
  /// Whether the peer has meanwhile answered, left or been given up, so that nothing needs to be
  /// asked.
  [[nodiscard]] bool is_over(const Inquiry& inquiry) const {
    return !inquiry.wants_address && !inquiry.failure && !membership_.in_doubt(inquiry.peer);
  }
  /// Whether an operation waits for the peer.
  [[nodiscard]] bool awaited(transport::PeerId peer) const;
  /// A member of one of the peer's groups whose process has ended.
  [[nodiscard]] std::optional<transport::PeerId> ended_member(transport::PeerId peer) const;

  transport::Transport& transport_;
  const transport::Clock& clock_;
  const GroupTable& groups_;
  const Scheduler& scheduler_;
  Membership& membership_;
  Lookups* lookups_;
  Hooks hooks_;
  std::vector<Inquiry> inquiries_;
  /// The directory's last answer, if that was an error. For a while, the directory is then asked
  /// only for addresses.
  std::string directory_error_;
  transport::TimePoint answered_{};  ///< when that answer arrived
};

}  // namespace gtopk::engine
