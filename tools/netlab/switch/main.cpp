// netlab-switch: the lab's switch with delay, jitter and loss, where the
// kernel has no netem. tools/netlab/delayed.py starts it in the namespace of the switch.
//
//   netlab-switch DELAY_NS JITTER_NS LOSS REORDER SEED FORGET_NS PORT...
//                                      forwards between these interfaces
//   netlab-switch --plain INTERFACE    disables the interface's offloads
//
// It prints "ready", answers each line on stdin with a line of counters (JSON), and ends with
// stdin.
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "connections.hpp"
#include "delay_line.hpp"
#include "ethernet.hpp"
#include "port.hpp"

namespace netlab {

namespace {

struct Counters {
  std::uint64_t received = 0;    // frames that came in
  std::uint64_t forwarded = 0;   // frames that a port's queue took
  std::uint64_t lost = 0;        // dropped as requested
  std::uint64_t overflowed = 0;  // more waited than allowed
  std::uint64_t forgotten = 0;   // their connection had been idle for too long
  std::uint64_t refused = 0;     // the port's queue was full
  std::uint64_t missed = 0;      // the switch was too slow for its ring
  std::uint64_t oversized = 0;   // larger than the MTU: an offload is on
  Time late{};                   // sum over frames of how late they were sent
  Time latest{};
};

Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Switch {
 public:
  Switch(const Impairment& impairment, Time forget, const std::vector<std::string>& interfaces)
      : pause_(std::min<Time>(impairment.delay / 100, std::chrono::microseconds(250))),
        connections_(forget) {
    for (std::size_t port = 0; port < interfaces.size(); ++port) {
      disable_offloads(interfaces[port]);
      ports_.push_back(std::make_unique<Port>(interfaces[port]));
      lines_.emplace_back(impairment, port, interfaces.size());
    }
  }

  /// Forwards until stdin ends.
  void run() {
    std::vector<pollfd> waits{{STDIN_FILENO, POLLIN, 0}};
    for (const auto& port : ports_) {
      waits.push_back({port->descriptor(), POLLIN, 0});
    }
    while (true) {
      const std::optional<Time> due = next_due();
      const timespec timeout = as_timespec(std::max(Time{0}, due.value_or(Time{0}) - now()));
      if (ppoll(waits.data(), waits.size(), due ? &timeout : nullptr, nullptr) < 0 &&
          errno != EINTR) {
        return;
      }
      if (waits[0].revents != 0 && !answer()) {
        return;
      }
      for (std::size_t port = 0; port < ports_.size(); ++port) {
        if ((waits[port + 1].revents & (POLLERR | POLLHUP)) != 0) {
          waits[port + 1].fd = -1;  // the port's host is gone
        }
      }
      while (work()) {
        // Frames carry the time of their arrival, so a pause that is short compared with the delay
        // costs only itself, and one wake-up handles all frames that came or fell due meanwhile.
        const timespec pause = as_timespec(pause_);
        ppoll(waits.data(), 1, &pause, nullptr);
        if (waits[0].revents != 0 && !answer()) {
          return;
        }
      }
    }
  }

 private:
  [[nodiscard]] std::optional<Time> next_due() const {
    std::optional<Time> first;
    for (const DelayLine& line : lines_) {
      const std::optional<Time> due = line.next_due();
      if (due && (!first || *due < *first)) {
        first = due;
      }
    }
    return first;
  }

  static timespec as_timespec(Time time) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    return {seconds.count(), (time - seconds).count()};
  }

  /// Receives and sends all available frames. Returns whether there were any.
  bool work() {
    const std::uint64_t before = counters_.received + counters_.forwarded + counters_.refused;
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      take_in(port);
    }
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      send_due(port);
    }
    return counters_.received + counters_.forwarded + counters_.refused != before;
  }

  /// Answers a line on stdin; returns false if stdin has ended.
  bool answer() {
    std::array<char, 64> text{};
    const ssize_t length = read(STDIN_FILENO, text.data(), text.size());
    if (length <= 0) {
      return length < 0 && errno == EINTR;
    }
    for (const auto& port : ports_) {
      counters_.missed += port->missed();
    }
    const Counters& c = counters_;
    const double mean =
        c.forwarded == 0 ? 0
                         : static_cast<double>(c.late.count()) / static_cast<double>(c.forwarded);
    std::printf(
        "{\"received\": %lu, \"forwarded\": %lu, \"lost\": %lu, \"overflowed\": %lu, "
        "\"forgotten\": %lu, \"refused\": %lu, \"missed\": %lu, \"oversized\": %lu, "
        "\"late_seconds\": %.9f, \"latest_seconds\": %.9f, \"cpu_seconds\": %.6f}\n",
        c.received, c.forwarded, c.lost, c.overflowed, c.forgotten, c.refused, c.missed,
        c.oversized, mean * 1e-9, static_cast<double>(c.latest.count()) * 1e-9, cpu_seconds());
    std::fflush(stdout);
    return true;
  }

  void take_in(std::size_t source) {
    Port& port = *ports_[source];
    // Take at most as many as a ring may hold, because other ports and due frames must get their
    // turn.
    for (int taken = 0; taken < 256; ++taken) {
      const std::optional<Port::Received> frame = port.receive();
      if (!frame) {
        return;
      }
      ++counters_.received;
      if (!frame->complete) {
        ++counters_.oversized;
      } else if (frame->bytes.size() >= kEthernetHeader) {
        forward(source, *frame);
      }
      port.release();
    }
  }

  void forward(std::size_t source, const Port::Received& frame) {
    if (!connections_.pass(now(), frame.bytes)) {
      ++counters_.forgotten;
      return;
    }
    port_of_[address_at(frame.bytes, 6)] = source;
    const std::uint64_t to = address_at(frame.bytes, 0);
    const auto known = is_multicast(to) ? port_of_.end() : port_of_.find(to);
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      if (port != source && (known == port_of_.end() || known->second == port)) {
        put(source, port, frame);
      }
    }
  }

  void put(std::size_t source, std::size_t port, const Port::Received& frame) {
    std::vector<std::byte> bytes(frame.bytes.begin(), frame.bytes.end());
    const Time arrival = now() - frame.age;
    if (is_neighbour_discovery(frame.bytes)) {
      lines_[port].pass(arrival, std::move(bytes));
      return;
    }
    switch (lines_[port].push(source, arrival, std::move(bytes))) {
      case Fate::kWaits:
        break;
      case Fate::kLost:
        ++counters_.lost;
        break;
      case Fate::kOverflowed:
        ++counters_.overflowed;
        break;
    }
  }

  void send_due(std::size_t port) {
    const Time by = now();
    batch_.clear();
    while (std::optional<Frame> frame = lines_[port].pop(by)) {
      counters_.late += by - frame->due;
      counters_.latest = std::max(counters_.latest, by - frame->due);
      batch_.push_back(std::move(*frame));
    }
    const std::size_t taken = ports_[port]->send(batch_);
    counters_.forwarded += taken;
    counters_.refused += batch_.size() - taken;
  }

  Time pause_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<DelayLine> lines_;
  Connections connections_;
  std::unordered_map<std::uint64_t, std::size_t> port_of_;
  std::vector<Frame> batch_;
  Counters counters_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "--plain") {
    disable_offloads(arguments[1]);
    return 0;
  }
  if (arguments.size() < 7) {
    std::fputs("netlab-switch: DELAY_NS JITTER_NS LOSS REORDER SEED FORGET_NS PORT...\n", stderr);
    return 2;
  }
  Impairment impairment;
  impairment.delay = Time{std::stoll(arguments[0])};
  impairment.jitter = Time{std::stoll(arguments[1])};
  impairment.loss = std::stod(arguments[2]);
  impairment.reorder = arguments[3] == "1";
  impairment.seed = std::stoull(arguments[4]);
  const Time forget{std::stoll(arguments[5])};
  Switch traffic(impairment, forget, {arguments.begin() + 6, arguments.end()});
  // Timers must be exact to the microsecond and run before the ranks, because a late frame makes a
  // longer link.
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param first{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) {
    setpriority(PRIO_PROCESS, 0, -20);
  }
  // The lab closes stdin after its ranks have ended; a terminal's Ctrl-C must not come before.
  std::signal(SIGINT, SIG_IGN);
  std::puts("ready");
  std::fflush(stdout);
  traffic.run();
  return 0;
}

}  // namespace

}  // namespace netlab

int main(int argc, char** argv) {
  try {
    return netlab::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "netlab-switch: %s\n", error.what());
    return 1;
  }
}
