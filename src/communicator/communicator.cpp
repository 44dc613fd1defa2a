#include "gtopk/communicator.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/collectives/path_costs.hpp"
#include "src/communicator/host_name.hpp"
#include "src/communicator/member_card.hpp"
#include "src/communicator/peer_directory.hpp"
#include "src/communicator/statistics_ledger.hpp"
#include "src/engine/engine_thread.hpp"
#include "src/engine/group.hpp"
#include "src/engine/operation.hpp"
#include "src/engine/task.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk {
namespace {

/// A hundred years, which replaces anything longer because adding more to a clock's time could
/// overflow.
constexpr std::chrono::nanoseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

}  // namespace

Communicator::Communicator(std::shared_ptr<Process> process, const Meeting& meeting)
    : process_(std::move(process)),
      directory_(meeting.directory),
      timeout_nanoseconds_(std::min(meeting.timeout, kLongestTimeout).count()) {
  if (!process_) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("group '{}': a process is needed (Process::start()), but none was given",
                    meeting.name));
  }
  process_->check_not_forked();
  if (meeting.rank >= meeting.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': rank {} is out of range for {} ranks", meeting.name,
                            meeting.rank, meeting.size));
  }
  if (meeting.size > 1 && !directory_) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': {} ranks need a directory to meet in, but none was given",
                            meeting.name, meeting.size));
  }
  engine::EngineThread& thread = *process_->thread_;
  const transport::PeerInfo& self = thread.self();
  MemberCard own{.identity = self.identity,
                 .id = 0,
                 .transport = thread.card(),
                 .process = fmt::format("host {}, pid {}", self.host, self.process),
                 .host = {},
                 .dense = {},
                 .refusal = {}};
  auto ways = collectives::PathSetting::kAuto;
  thread.call([&] {
    try {
      own.host = host_name(self, meeting.host);
      ways = collectives::path_setting();
      own.dense = to_string(ways);
      own.id = thread.engine().reserve_group_id();
    } catch (const Error& error) {  // other ranks learn of the error when they meet
      own.refusal = error;
    }
  });
  try {
    const Presence presence{.group = meeting.name,
                            .rank = meeting.rank,
                            .size = meeting.size,
                            .card = encode(own),
                            .process = own.process,
                            .refusal = own.refusal};
    std::vector<std::string> cards{presence.card};
    const auto peers = std::make_shared<PeerDirectory>(directory_);
    if (meeting.size > 1) {
      peers->publish(self.identity, thread.address());
      cards = directory_->meet(presence, std::min(meeting.timeout, kLongestTimeout));
    }
    const std::vector<MemberCard> members = read_cards(cards, presence);
    engine::GroupSpec spec;
    spec.name = meeting.name;
    spec.rank = meeting.rank;
    std::vector<std::uint64_t> identities;
    for (const MemberCard& member : members) {
      spec.cards.push_back(member.transport);
      spec.ids.push_back(member.id);
      spec.hosts.push_back(member.host);
      identities.push_back(member.identity);
    }
    spec.find_peer = [peers, identities = std::move(identities)](std::uint32_t rank,
                                                                 const std::stop_token& stop) {
      return peers->find(identities.at(rank), stop);
    };
    thread.call([&] {
      group_ = thread.engine().add_group(std::move(spec));
      if (meeting.size > 1) {
        thread.announce_departure(
            peers->place(), [peers, identity = self.identity](const auto& departure) {
              peers->publish_departure(identity, departure.last_words, !departure.first);
            });
      }
      group_->per_group_state.of<collectives::KnownPaths>().setting = ways;
      for (std::uint32_t rank = 0; rank < group_->size(); ++rank) {
        const bool reached =
            thread.engine().transport().takes(Memory::Kind::kCuda, group_->peer(rank));
        reached_from_devices_.push_back(reached ? 1 : 0);
      }
    });
  } catch (...) {
    if (!own.refusal) {
      thread.call([&] { thread.engine().release_group_id(own.id); });
    }
    throw;
  }
  begin_counting(group_);
  const engine::HostMap& hosts = group_->hosts();
  transport::log().info("group '{}': rank {} of {}, id {}, on host {} of {} ('{}'), {}", name(),
                        rank(), size(), group_->id(), hosts.host_of(rank()), hosts.hosts(),
                        own.host, thread.description());
}

Communicator::~Communicator() {
  if (process_->started_by_ != getpid()) {
    return;
  }
  engine::EngineThread& thread = *process_->thread_;
  thread.let_end(group_);
  thread.call([&] { thread.engine().remove_group(*group_); });
  end_counting(*group_);
}

std::uint32_t Communicator::rank() const { return group_->rank(); }
std::uint32_t Communicator::size() const { return group_->size(); }
const std::string& Communicator::name() const { return group_->name(); }

std::vector<std::uint32_t> Communicator::hosts() const {
  std::vector<std::uint32_t> hosts;
  hosts.reserve(size());
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    hosts.push_back(group_->hosts().host_of(rank));
  }
  return hosts;
}

void Communicator::set_timeout(std::chrono::nanoseconds timeout) {
  timeout_nanoseconds_ = std::min(timeout, kLongestTimeout).count();
}

bool Communicator::takes(Memory::Kind kind, std::uint32_t rank) const {
  return kind == Memory::Kind::kHost || reached_from_devices_.at(rank) != 0;
}

bool Communicator::polling_pays() const { return process_->thread_->polling_pays(); }

std::uint64_t Communicator::run(Collective collective, Call call) {
  process_->check_not_forked();
  if (collective.check) {
    collective.check({.name = name(),
                      .rank = rank(),
                      .size = size(),
                      .reached_from_devices = reached_from_devices_});
  }
  engine::OperationSpec spec(std::move(collective));
  spec.timeout =
      std::min(call.timeout.value_or(std::chrono::nanoseconds(timeout_nanoseconds_.load())),
               kLongestTimeout);
  spec.done = std::move(call.done);
  spec.keepalive = std::move(call.keepalive);
  return process_->thread_->engine().submit(group_, std::move(spec), std::move(call.input));
}

void Communicator::abort(const std::string& reason) {
  process_->check_not_forked();
  engine::EngineThread& thread = *process_->thread_;
  thread.call([&] {
    thread.engine().abort_group(
        *group_, Error(ErrorKind::kAborted, fmt::format("group '{}' was aborted by {}: {}", name(),
                                                        group_->member(rank()), reason)));
  });
}

std::optional<ErrorKind> Communicator::failure() const {
  process_->check_not_forked();
  std::optional<ErrorKind> kind;
  process_->thread_->call([&] {
    if (group_->failure) {
      kind = group_->failure->kind();
    }
  });
  return kind;
}

std::optional<PlanReport> Communicator::last_plan() const {
  process_->check_not_forked();
  PlanReport report;
  process_->thread_->call([&] { report = group_->per_group_state.of<PlanReport>(); });
  return report.algorithm.empty() ? std::nullopt : std::optional(std::move(report));
}

Statistics Communicator::statistics() const { return group_->metrics.read(); }

}  // namespace gtopk
