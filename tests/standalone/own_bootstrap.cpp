// Tests, standalone: a program without torch whose ranks meet through a bootstrap of its own, a
// directory of files. It uses only gtopk's public headers, and covers a group's whole life.
//
//     own_bootstrap FOLDER RANK RANKS
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "file_store.hpp"
#include "gtopk/communicator.hpp"
#include "gtopk/key_value_store.hpp"

namespace {

constexpr std::chrono::seconds kWatchdog{60};

void run(gtopk::Communicator& group, gtopk::Collective collective) {
  const auto ended = std::make_shared<std::promise<void>>();
  group.run(std::move(collective), {.done = [ended](const std::exception_ptr& error) {
              if (error) {
                ended->set_exception(error);
              } else {
                ended->set_value();
              }
            }});
  ended->get_future().get();
}

/// 1 + 2 + ... + ranks; each rank contributes one number.
int sum(gtopk::Communicator& group) {
  std::int32_t value = 1 + static_cast<std::int32_t>(group.rank());
  run(group, gtopk::all_reduce(&value, 1, gtopk::DataType::kInt32));
  return value;
}

/// What every rank has most of.
double largest(gtopk::Communicator& group) {
  std::vector<float> gradient(1000, 0.5F);
  std::vector<float> residual(gradient.size());
  gradient[42] = 1;
  run(group, gtopk::sparse_all_reduce(gradient.data(), residual.data(), gradient.size(),
                                      gtopk::DataType::kFloat32, {.k = 1}));
  return gradient[42];
}

void live(const std::string& folder, std::uint32_t rank, std::uint32_t ranks) {
  const auto directory = gtopk::directory_over(std::make_shared<FileStore>(folder));
  const auto process = gtopk::Process::start();
  gtopk::Communicator world(
      process,
      {.directory = directory, .name = "world", .rank = rank, .size = ranks, .timeout = kWatchdog});
  std::printf("world: sum %d, largest %g\n", sum(world), largest(world));
  if (rank > 0) {
    gtopk::Communicator rest(process, {.directory = directory,
                                       .name = "rest",
                                       .rank = rank - 1,
                                       .size = ranks - 1,
                                       .timeout = kWatchdog});
    std::printf("rest: sum %d\n", sum(rest));
  }
  run(world, gtopk::barrier());
  try {
    const gtopk::Communicator more(process, {.directory = directory,
                                             .name = "more",
                                             .rank = rank,
                                             .size = ranks + 1,
                                             .timeout = std::chrono::seconds(2)});
    std::printf("more: met\n");
  } catch (const gtopk::Error& error) {
    std::printf("more: %s\n", error.what());
  }
  std::printf("world: sum %d\n", sum(world));
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::fprintf(stderr, "usage: own_bootstrap FOLDER RANK RANKS\n");
    return 2;
  }
  try {
    live(words[1], static_cast<std::uint32_t>(std::atoi(words[2])),
         static_cast<std::uint32_t>(std::atoi(words[3])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
