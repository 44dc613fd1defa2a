// Tests, standalone: a rank of a program without torch, started by a launcher such as mpirun, that
// does what the test asks for. It uses only gtopk's public headers.
//
//     launched_job life | death | absence
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/communicator.hpp"
#include "gtopk/launch.hpp"

namespace {

using std::chrono::seconds;

constexpr seconds kWatchdog{40};

void run(gtopk::Communicator& group, gtopk::Collective collective) {
  const auto ended = std::make_shared<std::promise<void>>();
  group.run(std::move(collective), {.done = [ended](const std::exception_ptr& error) {
              error ? ended->set_exception(error) : ended->set_value();
            }});
  ended->get_future().get();
}

/// Every rank contributes 1 at index 42 and less at an index of its own, so the largest sum is the
/// number of ranks.
double largest(gtopk::Communicator& group) {
  std::vector<float> gradient(1000);
  std::vector<float> residual(gradient.size());
  gradient[42] = 1;
  gradient[100 + group.rank()] = 0.5F;
  run(group, gtopk::sparse_all_reduce(gradient.data(), residual.data(), gradient.size(),
                                      gtopk::DataType::kFloat32, {.k = 1}));
  return gradient[42] + gradient[100 + group.rank()];
}

class Job {
 public:
  Job()
      : launched_(gtopk::launch_environment()),
        directory_(gtopk::join_job(launched_, kWatchdog)),
        process_(gtopk::Process::start()) {}

  [[nodiscard]] std::uint32_t rank() const { return launched_.rank; }
  [[nodiscard]] std::uint32_t size() const { return launched_.world_size; }

  [[nodiscard]] std::unique_ptr<gtopk::Communicator> meet(const std::string& name,
                                                          std::uint32_t rank, std::uint32_t size,
                                                          seconds timeout = kWatchdog) const {
    return std::make_unique<gtopk::Communicator>(
        process_,
        gtopk::Meeting{
            .directory = directory_, .name = name, .rank = rank, .size = size, .timeout = timeout});
  }

 private:
  gtopk::LaunchEnvironment launched_;
  std::shared_ptr<gtopk::Directory> directory_;
  std::shared_ptr<gtopk::Process> process_;
};

/// The world, two groups of which one has the ranks in reverse, then the world again.
void live() {
  const Job job;
  const auto world = job.meet("world", job.rank(), job.size());
  run(*world, gtopk::barrier());
  const double first = largest(*world);
  const std::uint32_t half = job.rank() % 2;
  const std::uint32_t members = (job.size() + 1 - half) / 2;
  const std::uint32_t place = job.rank() / 2;
  const auto part =
      job.meet(half == 0 ? "even" : "odd", half == 0 ? place : members - 1 - place, members);
  const double of_part = largest(*part);
  run(*world, gtopk::barrier());
  std::printf("rank %u of %u: world %g, part of %u: %g, world %g\n", job.rank(), job.size(), first,
              members, of_part, largest(*world));
}

/// Rank 1 is killed in the middle of a job; the others print the error they get.
void die() {
  const Job job;
  const auto world = job.meet("world", job.rank(), job.size());
  run(*world, gtopk::barrier());
  if (job.rank() == 1) {
    std::raise(SIGKILL);
  }
  try {
    for (;;) {
      run(*world, gtopk::barrier());
    }
  } catch (const gtopk::Error& error) {
    std::printf("rank %u: %s\n", job.rank(), error.what());
  }
}

/// Rank 1 of 3 never joins.
void wait_in_vain() {
  const std::uint32_t rank = gtopk::launch_environment().rank;
  if (rank == 1) {
    return;
  }
  const Job job;
  const auto there = job.meet("there", rank / 2, 2);
  run(*there, gtopk::barrier());
  try {
    const auto world = job.meet("world", rank, 3, seconds(1));
  } catch (const gtopk::Error& error) {
    std::printf("rank %u: %s\n", rank, error.what());
  }
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count == 2 ? words[1] : "";
  try {
    if (what == "life") {
      live();
      live();  // a job may join, leave and join again
    } else if (what == "death") {
      die();
    } else if (what == "absence") {
      wait_in_vain();
    } else {
      std::fprintf(stderr, "usage: launched_job life | death | absence\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return 0;
}
