#include "gtopk/communicator.hpp"

#include <utility>

#include <fmt/format.h>

#include "collectives/agreement.hpp"
#include "collectives/all_gather.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/broadcast.hpp"
#include "collectives/reduction.hpp"
#include "communicator/meeting.hpp"
#include "engine/engine_thread.hpp"
#include "engine/group.hpp"
#include "engine/group_view.hpp"
#include "engine/point_to_point.hpp"
#include "gtopk/algorithms/sparse_all_reduce.hpp"
#include "transport/base/log.hpp"
#include "transport/bootstrap/key_value_store.hpp"

namespace gtopk {
namespace {

using collectives::Collective;
using collectives::Signature;
using engine::GroupView;
using engine::OperationSpec;
using engine::Task;

/// A published address is there: longer waits are for a store that is slow or gone.
constexpr std::chrono::seconds kLookupBound{30};
constexpr std::chrono::milliseconds kLookupSlice{500};

std::string address_key(std::uint64_t identity) {
  return fmt::format("gtopk/address/{:016x}", identity);
}

std::string find_address(bootstrap::KeyValueStore& store, std::uint64_t identity,
                         const std::stop_token& stop) {
  const std::string key = address_key(identity);
  const auto end = std::chrono::steady_clock::now() + kLookupBound;
  while (!stop.stop_requested() && std::chrono::steady_clock::now() < end) {
    if (auto address = store.find(key, kLookupSlice)) return *std::move(address);
  }
  throw Error(ErrorKind::kBootstrap, stop.stop_requested()
                                         ? std::string("this process leaves its process groups")
                                         : fmt::format("'{}' is not in the store any more", key));
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Process> process, const Meeting& meeting)
    : process_(std::move(process)),
      addresses_(meeting.job),
      timeout_nanoseconds_(meeting.timeout.count()) {
  process_->check_not_forked();
  if (meeting.rank >= meeting.size) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("group '{}': rank {} of {} ranks",
                                                         meeting.name, meeting.rank, meeting.size));
  }
  engine::EngineThread& thread = *process_->thread_;
  const transport::PeerInfo& self = thread.self();
  meeting::Presence presence{.group = meeting.name,
                             .rank = meeting.rank,
                             .size = meeting.size,
                             .card = thread.card(),
                             .identity = self.identity,
                             .process = fmt::format("host {}, pid {}", self.host, self.process),
                             .refusal = {}};
  thread.call([&] {
    try {
      presence.id = thread.engine().reserve_group_id();
    } catch (const Error& error) {  // the others hear of it when they meet
      presence.refusal = error;
    }
  });
  try {
    // Addresses are found under the identity of a process, which is never reused.
    if (meeting.size > 1) meeting.job->set(address_key(self.identity), thread.address());
    const meeting::Roll roll = meeting::meet(*meeting.group, presence, meeting.timeout);
    engine::GroupSpec spec;
    spec.name = meeting.name;
    spec.rank = meeting.rank;
    std::vector<std::uint64_t> identities;
    for (const meeting::Member& member : roll) {
      spec.cards.push_back(member.card);
      spec.ids.push_back(member.id);
      identities.push_back(member.identity);
    }
    spec.find_address = [store = meeting.job, identities = std::move(identities)](
                            std::uint32_t rank, const std::stop_token& stop) {
      return find_address(*store, identities.at(rank), stop);
    };
    thread.call([&] { group_ = thread.engine().add_group(std::move(spec)); });
  } catch (...) {
    if (!presence.refusal) {
      thread.call([&] { thread.engine().release_group_id(presence.id); });
    }
    throw;
  }
  transport::log().info("group '{}': rank {} of {}, id {}, {}", name(), rank(), size(),
                        group_->id(), thread.description());
}

Communicator::~Communicator() {
  if (process_->started_by_ != getpid()) return;
  engine::EngineThread& thread = *process_->thread_;
  thread.let_end(group_);
  thread.call([&] { thread.engine().remove_group(*group_); });
}

std::uint32_t Communicator::rank() const { return group_->rank(); }
std::uint32_t Communicator::size() const { return group_->size(); }
const std::string& Communicator::name() const { return group_->name(); }

void Communicator::set_timeout(std::chrono::nanoseconds timeout) {
  timeout_nanoseconds_ = timeout.count();
}

void Communicator::check_rank(std::uint32_t rank, const char* role) const {
  if (rank < size()) return;
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{} is rank {}, group '{}' has ranks 0..{}",
                                                       role, rank, name(), size() - 1));
}

void Communicator::submit(OperationSpec spec, Call call) {
  process_->check_not_forked();
  spec.timeout = call.timeout.value_or(std::chrono::nanoseconds(timeout_nanoseconds_.load()));
  spec.done = std::move(call.done);
  spec.keepalive = std::move(call.keepalive);
  process_->thread_->engine().submit(group_, std::move(spec));
}

void Communicator::sparse_all_reduce(void* tensor, void* residual, std::uint64_t d, DataType dtype,
                                     const SparseOptions& options, Call call) {
  const sparse::SparseCall sparse_call{tensor, residual, d, dtype, options};
  static_cast<void>(sparse::signature_of(sparse_call));  // throws for a call that no rank may make
  OperationSpec spec;
  spec.name = fmt::format("sparse_all_reduce({})", to_string(options.algorithm));
  spec.body = [sparse_call, &workspace = *process_->workspace_](GroupView& group) {
    return sparse::sparse_all_reduce(group, sparse_call, workspace);
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::all_reduce(void* data, std::uint64_t d, DataType dtype, ReduceOp op, Call call) {
  collectives::check_reduction(dtype, op);
  Signature signature;
  signature.collective = Collective::kAllReduce;
  signature.dtype = dtype;
  signature.op = op;
  signature.d = d;
  OperationSpec spec;
  spec.name = "all_reduce";
  spec.body = [=](GroupView& group) -> Task<void> {
    return collectives::all_reduce(group, signature, data, d, dtype, op);
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::broadcast(std::span<std::byte> data, std::uint32_t root, Call call,
                             DataType dtype) {
  check_rank(root, "the root");
  Signature signature;
  signature.collective = Collective::kBroadcast;
  signature.dtype = dtype;
  signature.root = root;
  signature.d = data.size();
  OperationSpec spec;
  spec.name = "broadcast";
  spec.body = [=](GroupView& group) { return collectives::broadcast(group, signature, data); };
  submit(std::move(spec), std::move(call));
}

void Communicator::all_gather(std::vector<std::span<std::byte>> rooms, Call call, DataType dtype) {
  if (rooms.size() != size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_gather wants one room per rank: {} expected, {} given", size(),
                            rooms.size()));
  }
  for (const auto& room : rooms) {
    if (room.size() == rooms.front().size()) continue;
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_gather wants rooms of one size: {} and {} bytes given",
                            rooms.front().size(), room.size()));
  }
  Signature signature;
  signature.collective = Collective::kAllGather;
  signature.dtype = dtype;
  signature.d = rooms.front().size();
  OperationSpec spec;
  spec.name = "all_gather";
  spec.body = [signature, rooms = std::move(rooms)](GroupView& group) {
    return collectives::all_gather(group, signature, rooms);
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::barrier(Call call) {
  OperationSpec spec;
  spec.name = "barrier";
  spec.after_earlier = true;
  spec.body = [signature = Signature{}](GroupView& group) {
    return collectives::agree(group, signature);
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag,
                        Call call) {
  check_rank(to, "the receiver");
  OperationSpec spec;
  spec.name = fmt::format("send(to {}, tag {})", to, tag);
  spec.point_to_point = true;
  spec.body = [=](GroupView& group) { return engine::send(group, to, tag, data); };
  submit(std::move(spec), std::move(call));
}

void Communicator::recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag,
                        Call call) {
  check_rank(from, "the sender");
  OperationSpec spec;
  spec.name = fmt::format("recv(from {}, tag {})", from, tag);
  spec.point_to_point = true;
  spec.body = [=](GroupView& group) { return engine::recv(group, from, tag, data); };
  submit(std::move(spec), std::move(call));
}

void Communicator::exchange(const Preselected& entries, std::uint64_t d,
                            const SparseOptions& options, Call call) {
  const sparse::PreselectedCall preselected{
      entries.indices,       entries.values,      d, options, entries.result_indices,
      entries.result_values, entries.result_count};
  sparse::check_preselected(preselected, size());
  OperationSpec spec;
  spec.name = fmt::format("exchange({})", to_string(options.algorithm));
  spec.body = [preselected, &workspace = *process_->workspace_](GroupView& group) {
    return sparse::exchange_preselected(group, preselected, workspace);
  };
  submit(std::move(spec), std::move(call));
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
    if (group_->failure) kind = group_->failure->kind();
  });
  return kind;
}

Statistics Communicator::statistics() const {
  const engine::Counters& counters = group_->counters;
  const auto seconds = [](const std::atomic<std::uint64_t>& nanoseconds) {
    return static_cast<double>(nanoseconds.load()) * 1e-9;
  };
  return {counters.operations,
          counters.messages_sent,
          counters.messages_received,
          counters.bytes_sent,
          counters.bytes_received,
          counters.notices_sent,
          counters.most_in_flight,
          seconds(counters.compress_nanoseconds),
          seconds(counters.exchange_nanoseconds),
          seconds(counters.commit_nanoseconds)};
}

}  // namespace gtopk
