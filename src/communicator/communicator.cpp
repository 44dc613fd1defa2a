#include "gtopk/communicator.hpp"

#include <charconv>
#include <future>
#include <utility>

#include <fmt/format.h>

#include "collectives/agreement.hpp"
#include "collectives/all_gather.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/broadcast.hpp"
#include "collectives/reduction.hpp"
#include "collectives/ring.hpp"
#include "engine/engine_thread.hpp"
#include "engine/group.hpp"
#include "engine/group_view.hpp"
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

/// The group's id and every member's address. Keys carry how often this group has met before, so
/// that a group made again under the same name does not find its predecessor's addresses.
engine::GroupSpec meet(const Meeting& meeting, const std::string& address) {
  engine::GroupSpec spec;
  spec.name = meeting.name;
  spec.rank = meeting.rank;
  const std::int64_t arrivals = meeting.group.add("gtopk/arrivals", 1);
  const std::int64_t incarnation = (arrivals - 1) / meeting.size;
  const auto key = [&](const std::string& what) {
    return fmt::format("gtopk/{}/{}", incarnation, what);
  };
  if (meeting.rank == 0) {
    const std::int64_t groups = meeting.job.add("gtopk/groups", 1);
    meeting.group.set(key("id"), std::to_string(groups % transport::kMaxGroups));
  }
  meeting.group.set(key(fmt::format("address/{}", meeting.rank)), address);
  const std::string id = meeting.group.get(key("id"), meeting.timeout);
  std::from_chars(id.data(), id.data() + id.size(), spec.id);
  for (std::uint32_t rank = 0; rank < meeting.size; ++rank) {
    const bool own = rank == meeting.rank;
    spec.addresses.push_back(
        own ? address : meeting.group.get(key(fmt::format("address/{}", rank)), meeting.timeout));
  }
  return spec;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Process> process, const Meeting& meeting)
    : process_(std::move(process)), timeout_nanoseconds_(meeting.timeout.count()) {
  process_->check_not_forked();
  if (meeting.rank >= meeting.size) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("group '{}': rank {} of {} ranks",
                                                         meeting.name, meeting.rank, meeting.size));
  }
  engine::EngineThread& thread = *process_->thread_;
  engine::GroupSpec spec = meet(meeting, thread.address());
  thread.call([&] { group_ = thread.engine().add_group(std::move(spec)); });
  transport::log().info("group '{}': rank {} of {}, id {}, {}", name(), rank(), size(),
                        group_->id(), thread.description());
}

Communicator::~Communicator() {
  if (process_->started_by_ != getpid()) return;
  engine::EngineThread& thread = *process_->thread_;
  const auto idle = std::make_shared<std::promise<void>>();
  thread.call([&] { thread.engine().when_idle(group_, [idle] { idle->set_value(); }); });
  static_cast<void>(idle->get_future().wait_for(thread.drain));
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

void Communicator::broadcast(std::span<std::byte> data, std::uint32_t root, Call call) {
  check_rank(root, "the root");
  Signature signature;
  signature.collective = Collective::kBroadcast;
  signature.root = root;
  signature.d = data.size();
  OperationSpec spec;
  spec.name = "broadcast";
  spec.body = [=](GroupView& group) { return collectives::broadcast(group, signature, data); };
  submit(std::move(spec), std::move(call));
}

void Communicator::all_gather(std::vector<std::span<std::byte>> rooms, Call call) {
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
  spec.body = [=](GroupView& group) -> Task<void> {
    engine::Message outgoing = group.send_tagged(to, tag, data);
    co_await outgoing;
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag,
                        Call call) {
  check_rank(from, "the sender");
  OperationSpec spec;
  spec.name = fmt::format("recv(from {}, tag {})", from, tag);
  spec.point_to_point = true;
  spec.body = [=](GroupView& group) -> Task<void> {
    engine::Message incoming = group.recv_tagged(from, tag, data);
    const std::size_t received = co_await incoming;
    collectives::require_length(received, data.size(), group, from);
  };
  submit(std::move(spec), std::move(call));
}

void Communicator::exchange(const Preselected& entries, std::uint64_t d,
                            const SparseOptions& options, Call call) {
  const sparse::PreselectedCall preselected{
      entries.indices.data(), entries.values.data(), entries.indices.size(), d, options,
      entries.result_indices, entries.result_values, entries.result_count};
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
