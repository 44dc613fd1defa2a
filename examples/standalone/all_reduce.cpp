// A whole program without torch: a sparse all-reduce over the ranks of a job. It uses only gtopk's
// public headers.
#include <gtopk/communicator.hpp>
#include <gtopk/launch.hpp>

#include <cstdio>
#include <exception>
#include <future>
#include <vector>

int main() try {
  const auto job = gtopk::launch_environment();  // of torchrun, mpirun, prterun, srun
  const auto directory = gtopk::join_job(job, std::chrono::seconds(60));
  std::vector<float> gradient(1'000'000, 0.5F), residual(gradient.size());
  gradient[42] = 1;
  std::promise<void> ended;

  const auto process = gtopk::Process::start();
  gtopk::Communicator group(process,
                            {.directory = directory, .rank = job.rank, .size = job.world_size});
  group.run(gtopk::sparse_all_reduce(gradient.data(), residual.data(), gradient.size(),
                                     gtopk::DataType::kFloat32, {.k = 1000}),
            {.done = [&](const std::exception_ptr& error) {
              error ? ended.set_exception(error) : ended.set_value();
            }});
  ended.get_future().get();  // throws gtopk::Error
  std::printf("rank %u of %u: %g\n", job.rank, job.world_size, gradient[42]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
