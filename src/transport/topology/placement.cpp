#include "src/transport/topology/placement.hpp"

#include <sched.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/topology/job_place.hpp"
#include "src/transport/topology/probe.hpp"

namespace gtopk::topology {
namespace {

constexpr const char* kVariable = "GTOPK_BIND";

/// Whether the machine has one NUMA node. Asking the kernel takes microseconds, while hwloc takes
/// milliseconds.
bool one_node() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string online;
  file >> online;
  try {
    return online.empty() || cores_from(online).size() < 2;  // in the notation of a list of cores
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

BindSetting bind_setting(std::string_view text, const Cores& allowed) {
  if (text.empty() || text == "auto") {
    return {};
  }
  if (text == "none") {
    return {.mode = BindSetting::Mode::kNone};
  }
  BindSetting setting{.mode = BindSetting::Mode::kCores};
  try {
    setting.cores = cores_from(text);
  } catch (const Error&) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} is '{}': expected auto, none, or a list of cores like 0-3,8",
                            kVariable, text));
  }
  if (!includes(allowed, setting.cores)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} is '{}', but this process may run only on cores {}", kVariable,
                            text, to_text(allowed)));
  }
  return setting;
}

Placement placement(const BindSetting& setting, const Plan& plan) {
  Placement made{.devices = plan.devices, .why_devices = plan.why_devices};
  switch (setting.mode) {
    case BindSetting::Mode::kNone:
      made.text = fmt::format("not bound: {}=none", kVariable);
      return made;
    case BindSetting::Mode::kCores:
      made.engine = setting.cores;
      made.text = fmt::format("cores {}: set by {}", to_text(setting.cores), kVariable);
      return made;
    case BindSetting::Mode::kAuto:
      break;
  }
  if (plan.engine.empty()) {
    made.text = "not bound: " + plan.why;
    return made;
  }
  made.engine = plan.engine;
  const std::string node = plan.node ? fmt::format(", node {}", *plan.node) : "";
  made.text = fmt::format("cores {}{}: {}", to_text(plan.engine), node, plan.why);
  return made;
}

Placement placement_here() {
  const BindSetting setting = bind_setting(variable_here(kVariable).value_or(""), allowed_here());
  if (one_node()) {
    return placement(setting, {.why = kOneNode, .why_devices = kOneNode});
  }
  return placement(setting, plan(probe_this_machine(), job_place(variable_here)));
}

void bind_this_thread(const Placement& placement) {
  transport::log().info("engine thread: {}", placement.text);
  if (placement.engine.empty()) {
    return;
  }
  const std::size_t cores = placement.engine.back() + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
      CPU_ALLOC(cores), [](cpu_set_t* each) { CPU_FREE(each); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(cores), set.get());
  for (const std::uint32_t core : placement.engine) {
    CPU_SET_S(core, CPU_ALLOC_SIZE(cores), set.get());
  }
  if (sched_setaffinity(0, CPU_ALLOC_SIZE(cores), set.get()) != 0) {
    transport::log().info("the engine thread was not bound: {}",
                          std::generic_category().message(errno));
  }
}

}  // namespace gtopk::topology
