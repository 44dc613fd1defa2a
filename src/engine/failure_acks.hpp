// Engine: which failures every member of their group has heard of. A rank that tells all members
// gets an answer from each of them, and then tells them that all have heard. Until then, or for
// kBound, no member says goodbye: members that have not heard yet would only see a rank end, and
// take that for the cause.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "src/engine/group.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/notice.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class FailureAcks {
 public:
  /// How long a failure keeps its group's members from leaving if one of them does not answer.
  static constexpr transport::Duration kBound = std::chrono::seconds(2);

  FailureAcks(const transport::Transport& transport, const transport::Clock& clock,
              Membership& membership)
      : transport_(transport), clock_(clock), membership_(membership) {}

  /// This process has sent that notice of a failure to every other member that has not left.
  void told(const Group& group, const Notice& notice);
  /// `from` has sent this process a notice of a failure; answers it.
  void heard(transport::PeerId from, const Notice& notice);
  /// Handles kHeard and kAllHeard.
  void handle(transport::PeerId from, const Notice& notice);
  /// Must be called when the number belongs to a new group.
  void forget_group(std::uint32_t id);

  /// Tells members once the last answer has come or cannot come, and stops waiting for members that
  /// have left or cannot be reached. Must be called in every step.
  void settle();
  /// Whether this process may leave.
  [[nodiscard]] bool all_have_heard() const;

 private:
  struct Failure {
    std::uint32_t group;   ///< this process's number for the group
    std::uint64_t number;  ///< the collective's number, as in kHeard
    transport::TimePoint since;
    bool told_here = false;  ///< whether this process has told all members
    bool known = false;      ///< all members have heard
    /// Peers that this process told, with the group's number there.
    std::map<transport::PeerId, std::uint32_t> told;
    std::set<transport::PeerId> unanswered;
    std::set<transport::PeerId> tellers;
  };

  [[nodiscard]] Failure* find(std::uint32_t group, std::uint64_t number);
  Failure& found_or_made(std::uint32_t group, std::uint64_t number);
  void settle(Failure& failure);

  const transport::Transport& transport_;
  const transport::Clock& clock_;
  Membership& membership_;
  std::vector<Failure> failures_;  ///< failures of the last kBound
};

}  // namespace gtopk::engine
