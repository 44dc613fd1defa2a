#include "device.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace fake {

class Stream {
 public:
  struct Task {
    std::function<void()> run;
    std::function<bool()> may_run;
    std::uint64_t number = 0;  ///< of all tasks, in the order in which they were given
  };
  std::deque<Task> tasks;  // under the device's mutex
  std::atomic<std::uint64_t> given{0};
  std::atomic<std::uint64_t> done{0};
};

namespace {

// Of CUresult.
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;

/// Memory that streams wait for is written without a notification, so it is polled.
constexpr std::chrono::microseconds kPoll(50);

struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable stood_still;
  std::uint64_t standstills = 0;  ///< how often nothing could run
  std::array<Stream, kStreams> streams;
  std::map<std::string, std::int64_t> counts;
  std::vector<std::string> calls;
  std::map<std::string, std::int64_t> failing;  // after how many calls
  std::string failing_at;                       // a call that does not tell
  std::atomic<std::int64_t> releases{0};
  std::int64_t holds = 0;
  std::atomic<bool> capturing{false};
  std::atomic<bool> failed{false};
  std::atomic<std::int64_t> queries{0};
  std::minstd_rand random{1};
  std::uint64_t tasks_given = 0;
  /// Streams share so many hardware queues, each of which runs its tasks in the order in which they
  /// were given. 0: every stream has its own.
  std::size_t queues = 0;

  Device() {
    if (const char* const shared = std::getenv("FAKE_DEVICE_QUEUES")) {
      queues = std::strtoul(shared, nullptr, 10);
    }
    if (const char* const named = std::getenv("FAKE_DEVICE_FAILS")) {
      failing[named] = 0;
    }
    if (const char* const named = std::getenv("FAKE_DEVICE_FAILS_AT")) {
      failing_at = named;
    }
    std::thread([this] { work(); }).detach();
  }

  /// With the mutex held. What a device that has failed has not done, it never does.
  [[nodiscard]] bool has_done_all() const {
    return failed ||
           std::ranges::all_of(streams, [](const Stream& each) { return each.tasks.empty(); });
  }

  /// With the mutex held; the stream has tasks.
  [[nodiscard]] bool is_next_of_its_queue(const Stream& stream) const {
    if (queues == 0) {
      return true;
    }
    const auto number = static_cast<std::size_t>(&stream - streams.data());
    for (std::size_t other = number % queues; other < streams.size(); other += queues) {
      const auto& tasks = streams[other].tasks;
      if (!tasks.empty() && tasks.front().number < stream.tasks.front().number) {
        return false;
      }
    }
    return true;
  }

  /// Runs tasks one after the other, each from a random stream among those whose next task may run.
  void work() {
    for (;;) {
      Stream* chosen = nullptr;
      Stream::Task task;
      {
        const std::lock_guard lock(mutex);
        const std::size_t first = random() % streams.size();
        for (std::size_t i = 0; i < streams.size() && chosen == nullptr && !failed; ++i) {
          Stream& each = streams[(first + i) % streams.size()];
          if (each.tasks.empty()) {
            continue;
          }
          const auto& may_run = each.tasks.front().may_run;
          if (is_next_of_its_queue(each) && (!may_run || may_run())) {
            chosen = &each;
          }
        }
        if (chosen != nullptr) {
          task = std::move(chosen->tasks.front());
        }
      }
      if (chosen == nullptr) {
        // Whether a task may run changes without a word; whether there is one does not.
        std::unique_lock lock(mutex);
        ++standstills;
        stood_still.notify_all();
        if (has_done_all()) {
          changed.wait(lock);
        } else {
          changed.wait_for(lock, kPoll);
        }
        continue;
      }
      task.run();
      {
        const std::lock_guard lock(mutex);
        chosen->tasks.pop_front();
      }
      ++chosen->done;
    }
  }
};

Device& device() {
  static Device* const one = new Device;  // its thread never ends
  return *one;
}

constexpr std::size_t kArena = 1ULL << 30U;
constexpr int kPoison = 0xEE;

struct Block {
  std::size_t bytes = 0;
  bool pinned = false;
  const Stream* on = nullptr;
  std::vector<std::pair<const Stream*, std::uint64_t>> users;
};

struct Arena {
  std::mutex mutex;
  std::byte* locked = nullptr;
  std::byte* open = nullptr;
  std::size_t taken = 0;
  std::map<const void*, Block> blocks;                      // those in use
  std::multimap<std::pair<bool, std::size_t>, void*> free;  // by kind and size
  std::vector<std::pair<void*, Block>> waiting;             // given back, but in use on a stream

  Arena() {
    const int file = memfd_create("fake device", 0);
    if (file < 0 || ftruncate(file, kArena) != 0) {
      std::abort();
    }
    // A network that takes a device's memory reads and writes it where it is.
    const int reach =
        std::getenv("FAKE_DEVICE_OPEN") != nullptr ? PROT_READ | PROT_WRITE : PROT_NONE;
    locked = static_cast<std::byte*>(mmap(nullptr, kArena, reach, MAP_SHARED, file, 0));
    open =
        static_cast<std::byte*>(mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (locked == MAP_FAILED || open == MAP_FAILED) {
      std::abort();
    }
  }

  void settle() {
    std::erase_if(waiting, [this](auto& each) {
      for (const auto& [stream, until] : each.second.users) {
        if (stream->done < until) {
          return false;
        }
      }
      reuse(each.first, each.second);
      return true;
    });
  }

  void reuse(void* memory, const Block& block) {
    void* const at = block.pinned ? memory : open + (static_cast<std::byte*>(memory) - locked);
    std::memset(at, kPoison, block.bytes);
    free.emplace(std::pair(block.pinned, block.bytes), memory);
  }
};

Arena& arena() {
  static Arena* const one = new Arena;
  return *one;
}

}  // namespace

Stream& stream(int number) { return device().streams.at(static_cast<std::size_t>(number)); }

int number_of(const Stream& stream) { return static_cast<int>(&stream - device().streams.data()); }

void enqueue(Stream& stream, std::function<void()> task, std::function<bool()> may_run) {
  const std::lock_guard lock(device().mutex);
  ++stream.given;
  stream.tasks.push_back({std::move(task), std::move(may_run), device().tasks_given++});
  device().changed.notify_one();
}

std::uint64_t given(const Stream& stream) { return stream.given; }
std::uint64_t done(const Stream& stream) { return stream.done; }

void synchronize(Stream& stream) {
  const std::uint64_t until = stream.given;
  while (stream.done < until && !device().failed) {
    sched_yield();
  }
}

void* Memory::take(std::size_t bytes, bool pinned, const Stream* on) {
  std::size_t size = 64;
  while (size < bytes) {
    size *= 2;
  }
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  all.settle();
  void* memory = nullptr;
  if (const auto found = all.free.find({pinned, size}); found != all.free.end()) {
    memory = found->second;
    all.free.erase(found);
  } else if (pinned) {
    memory = std::aligned_alloc(64, size);
  } else {
    if (all.taken + size > kArena) {
      std::abort();
    }
    memory = all.locked + all.taken;
    all.taken += size;
  }
  all.blocks[memory] = {size, pinned, on, {}};
  return memory;
}

void Memory::give_back(void* memory) {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(memory);
  if (found == all.blocks.end()) {
    std::abort();
  }
  Block& block = found->second;
  if (block.pinned && !block.users.empty() && device().failed) {
    std::fprintf(stderr, "the fake device has failed, and pinned memory is given back\n");
    std::abort();  // as where torch records events for it
  }
  for (auto& [stream, until] : block.users) {
    until = stream->given;  // as torch's allocators do, on the device and of pinned memory
  }
  if (block.on != nullptr) {
    block.users.emplace_back(block.on, block.on->given.load());
  }
  all.waiting.emplace_back(memory, std::move(block));
  all.blocks.erase(found);
  all.settle();
}

void Memory::in_use_on(const void* memory, const Stream& stream) {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.upper_bound(memory);
  if (found == all.blocks.begin()) {
    return;
  }
  std::prev(found)->second.users.emplace_back(&stream, stream.given.load());
}

bool Memory::is_pinned(const void* memory) {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.upper_bound(memory);
  if (found == all.blocks.begin()) {
    return false;
  }
  const auto& [begin, block] = *std::prev(found);
  return block.pinned && memory < static_cast<const std::byte*>(begin) + block.bytes;
}

void* Memory::behind(const void* device_memory) {
  return arena().open + (static_cast<const std::byte*>(device_memory) - arena().locked);
}

void* Memory::reachable(const void* memory) {
  const auto* const at = static_cast<const std::byte*>(memory);
  const bool on_device = at >= arena().locked && at < arena().locked + kArena;
  return on_device ? behind(memory) : const_cast<void*>(memory);
}

void count(const std::string& what, std::int64_t times) {
  const std::lock_guard lock(device().mutex);
  device().counts[what] += times;
  if (times == 1) {
    device().calls.push_back(what);
  }
}

std::vector<std::string> calls() {
  const std::lock_guard lock(device().mutex);
  return std::exchange(device().calls, {});
}

std::map<std::string, std::int64_t> counts() {
  const std::lock_guard lock(device().mutex);
  return device().counts;
}

void hold(Stream& stream) {
  std::int64_t number = 0;
  {
    const std::lock_guard lock(device().mutex);
    number = ++device().holds;
  }
  enqueue(stream, [] {}, [number] { return device().releases >= number; });
}

void release() { ++device().releases; }

void await_standstill() {
  std::unique_lock lock(device().mutex);
  // The first may be of a look that had begun before.
  const std::uint64_t second = device().standstills + 2;
  device().stood_still.wait(
      lock, [&] { return device().standstills >= second || device().has_done_all(); });
}

void let_fail(const std::string& what, std::int64_t more) {
  const std::lock_guard lock(device().mutex);
  device().failing[what] = more;
}

bool fails(const std::string& what) {
  const std::lock_guard lock(device().mutex);
  if (device().failed) {
    return true;
  }
  if (device().failing_at == what) {
    device().failed = true;
    return false;
  }
  const auto found = device().failing.find(what);
  if (found == device().failing.end() || found->second-- > 0) {
    return false;
  }
  device().failing.erase(found);
  return true;
}

void fault(Stream& stream) {
  enqueue(stream, [] { device().failed = true; });
}

int error() { return device().failed ? kIllegalAddress : 0; }

std::int64_t queries() { return device().queries; }

void capture(bool on) { device().capturing = on; }

}  // namespace fake

// The driver's functions that gtopk calls, as GTOPK_CUDA_DRIVER finds them.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

int cuStreamWaitValue32_v2(void* on, std::uint64_t address, std::uint32_t value, unsigned flags) {
  fake::count("wait_value");
  if (flags != 0 || fake::fails("wait_value")) {
    return std::max(fake::error(), 1);
  }
  const auto* const flag = reinterpret_cast<const std::atomic<std::uint32_t>*>(address);
  fake::enqueue(
      *static_cast<fake::Stream*>(on), [] {},
      [flag, value] {
        return static_cast<std::int32_t>(flag->load(std::memory_order_acquire) - value) >= 0;
      });
  return 0;
}

int cuLaunchHostFunc(void* on, void (*function)(void*), void* argument) {
  fake::count("host_function");
  if (fake::fails("host_function")) {
    return std::max(fake::error(), 1);
  }
  fake::enqueue(*static_cast<fake::Stream*>(on), [function, argument] { function(argument); });
  return 0;
}

int cuStreamQuery(void* stream) {
  ++fake::device().queries;
  const auto& asked = *static_cast<fake::Stream*>(stream);
  const int idle = fake::done(asked) < fake::given(asked) ? fake::kNotReady : 0;
  return std::max(fake::error(), idle);
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = 0;
  std::swap(*mode, current);
  return fake::error();
}

int cuStreamIsCapturing(void*, int* status) {
  *status = fake::device().capturing ? 1 : 0;
  return fake::error();
}
}
// NOLINTEND(readability-identifier-naming)
