// gtopk-allreduce: the tensor and residual of one rank, and a step on them, on the host or on a
// GPU. On a GPU it runs as for torch's tensors, if there are kernels for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "src/cuda/calls.hpp"
#include "src/gpu/launcher.hpp"
#include "tools/programs/allreduce/data.hpp"
#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/gpu.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

/// A rank's GPU, and the kernels for it; null if they were not built.
struct Device {
  /// Opens the device. Throws std::runtime_error, as Gpu and load_calls() do.
  explicit Device(std::uint32_t number);

  Gpu gpu;
  const cuda::Calls* kernels;
  // Both are set if there are kernels.
  std::unique_ptr<gtopk::gpu::Watch> watch;
  std::unique_ptr<gtopk::gpu::Launcher> launcher;
};

class Subject {
 public:
  explicit Subject(const Setting& setting, std::uint32_t rank)
      : setting_(setting), host_(setting.dtype, setting.n, rank) {}
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  Subject(Subject&&) = delete;
  Subject& operator=(Subject&&) = delete;
  virtual ~Subject() = default;

  /// Sets the next step's gradient, which is the same as the last one's.
  virtual void refill() { host_.refill(); }
  /// Does one step; returns when tensor and residual have its result. `seed` is as in
  /// SparseOptions.
  virtual void step(Job& job, std::optional<std::uint64_t> seed);
  /// Returns tensor and residual in memory that the host can read.
  [[nodiscard]] virtual const Tensor& fetched() { return host_; }
  /// Where the step is done: "host", "device", or "staged" if all data on a GPU is copied to the
  /// host and back.
  [[nodiscard]] virtual std::string place() const { return "host"; }

 protected:
  [[nodiscard]] const Setting& setting() const { return setting_; }
  [[nodiscard]] Tensor& host() { return host_; }
  [[nodiscard]] SparseOptions options(std::optional<std::uint64_t> seed);

 private:
  Setting setting_;
  Tensor host_;
};

/// Makes a subject. `device` is null for host memory; it must outlive the subject.
[[nodiscard]] std::unique_ptr<Subject> subject(const Job& job, const Setting& setting,
                                               const Device* device);

}  // namespace gtopk::programs::allreduce
