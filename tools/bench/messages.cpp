// Bench: messages of the UCX transport between two processes on this host, as the engine's loop
// moves them (progress, then yield). `there and back` halves the round trip; `both ways` is an
// exchange, as a round of recursive doubling. Settings are UCX's environment: UCX_TLS=tcp,self
// gtopk-bench-messages. It knows no collective.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtopk_version.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"
#include "src/transport/ucx/ucx_transport.hpp"

namespace {

using gtopk::bootstrap::Endpoint;
using gtopk::bootstrap::TcpStore;
using gtopk::transport::PeerId;
using gtopk::transport::Request;
using gtopk::transport::Status;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{60};

struct Arguments {
  std::vector<std::size_t> sizes = {8,      1024,   8192,    65536,   131072,
                                    204800, 524288, 1048576, 2097152, 4194304};
  double seconds = 0.5;   // per size and mode
  std::size_t chunk = 0;  // bytes; 0: each message whole
  std::string json;
};

struct Row {
  std::string mode;
  std::size_t bytes = 0;
  std::vector<double> microseconds;  // one way
};

class Pair {
 public:
  Pair(int rank, const Endpoint& rendezvous, std::size_t chunk)
      : rank_(rank),
        chunk_(chunk),
        transport_(gtopk::transport::make_ucx_transport()),
        store_(rendezvous, kLimit) {
    store_.set("address/" + std::to_string(rank), transport_->address());
    peer_ = transport_->add_peer(store_.get("address/" + std::to_string(1 - rank), kLimit));
  }
  ~Pair() {
    transport_->expect_departure(peer_);
    transport_->close(std::chrono::seconds(5));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  Pair(Pair&&) = delete;
  Pair& operator=(Pair&&) = delete;

  /// One round; rank 0 starts unless both go at once.
  void round(std::size_t bytes, bool both_ways) {
    post(bytes, true);
    if (both_ways || rank_ == 0) {
      post(bytes, false);
    }
    finish(in_);
    if (!both_ways && rank_ == 1) {
      post(bytes, false);
    }
    finish(out_);
  }
  void reserve(std::size_t bytes) {
    sent_.assign(std::max<std::size_t>(bytes, 1), 'g');
    received_.assign(std::max<std::size_t>(bytes, 1), 0);
  }
  /// Rank 0 decides, as its clock does.
  bool agree(bool value) {
    sent_[0] = value ? 'y' : 'n';
    round(1, true);
    return rank_ == 0 ? value : received_[0] == 'y';
  }
  [[nodiscard]] std::string describe() const { return transport_->describe(); }

 private:
  void post(std::size_t bytes, bool receive) {
    std::deque<Request>& requests = receive ? in_ : out_;
    const std::size_t step = chunk_ == 0 ? std::max<std::size_t>(bytes, 1) : chunk_;
    std::size_t count = 0;
    for (std::size_t at = 0; at == 0 || at < bytes; at += step, ++count) {
      if (requests.size() <= count) {
        requests.emplace_back();
      }
      Request& request = requests[count];
      request.prepare([](Request&) {}, nullptr);
      const std::size_t part = std::min(step, bytes - at);
      if (receive) {
        transport_->recv(peer_, count, received_.data() + at, part, request);
      } else {
        transport_->send(peer_, count, sent_.data() + at, part, request);
      }
    }
  }
  void finish(const std::deque<Request>& requests) {
    for (const Request& request : requests) {
      while (request.pending()) {
        if (!transport_->progress()) {
          sched_yield();
        }
      }
      if (request.status() != Status::kOk) {
        throw std::runtime_error(
            fmt::format("a message ended with '{}'", to_string(request.status())));
      }
    }
  }

  int rank_;
  std::size_t chunk_;
  std::unique_ptr<gtopk::transport::Transport> transport_;
  TcpStore store_;
  PeerId peer_ = 0;
  std::deque<Request> in_;
  std::deque<Request> out_;
  std::vector<char> sent_;
  std::vector<char> received_;
};

double percentile(std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

std::vector<Row> measure(int rank, const Endpoint& rendezvous, const Arguments& arguments) {
  Pair pair(rank, rendezvous, arguments.chunk);
  std::vector<Row> rows;
  if (rank == 0) {
    fmt::print("# gtopk {}, {}, {} cores\n", gtopk::kVersion, pair.describe(),
               sysconf(_SC_NPROCESSORS_ONLN));
    fmt::print(
        "# one way, microseconds; GB = 1e9 bytes\n{:>15} {:>9} {:>7} {:>9} {:>9} {:>9} {:>8}\n",
        "mode", "size(B)", "iters", "min", "p50", "p99", "bw(GB/s)");
  }
  for (const bool both_ways : {false, true}) {
    for (const std::size_t bytes : arguments.sizes) {
      pair.reserve(bytes);
      Row row{
          .mode = both_ways ? "both ways" : "there and back", .bytes = bytes, .microseconds = {}};
      const auto block = [&](int rounds) {
        for (int i = 0; i < rounds; ++i) {
          const auto begin = Clock::now();
          pair.round(bytes, both_ways);
          const std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
          row.microseconds.push_back(both_ways ? taken.count() : taken.count() / 2);
        }
      };
      block(20);
      row.microseconds.clear();
      const auto begin = Clock::now();
      do {
        block(20);
      } while (pair.agree(Clock::now() - begin < std::chrono::duration<double>(arguments.seconds)));
      std::vector<double> sorted = row.microseconds;
      std::sort(sorted.begin(), sorted.end());
      if (rank == 0) {
        const double p50 = percentile(sorted, 0.5);
        fmt::print("{:>15} {:>9} {:>7} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.3f}\n", row.mode, bytes,
                   sorted.size(), sorted.front(), p50, percentile(sorted, 0.99),
                   static_cast<double>(bytes) / p50 / 1e3);
        std::fflush(stdout);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Latency and bandwidth of the UCX transport between two processes on this host");
  Arguments arguments;
  app.add_option("--sizes", arguments.sizes, "message sizes in bytes")->delimiter(',');
  app.add_option("--seconds", arguments.seconds, "time per size and mode");
  app.add_option("--chunk", arguments.chunk, "send each message in parts of this many bytes");
  app.add_option("--json", arguments.json, "write the raw samples to this file");
  CLI11_PARSE(app, argc, argv);

  gtopk::bootstrap::RendezvousListener listener(Endpoint{.host = "127.0.0.1", .port = 0});
  const Endpoint rendezvous{.host = "127.0.0.1", .port = listener.port()};
  const pid_t child = fork();
  try {
    if (child == 0) {
      static_cast<void>(measure(1, rendezvous, arguments));
      return 0;
    }
    const gtopk::bootstrap::RendezvousServer server(std::move(listener));
    const std::vector<Row> rows = measure(0, rendezvous, arguments);
    int status = 0;
    waitpid(child, &status, 0);
    if (!arguments.json.empty()) {
      nlohmann::json samples;
      for (const Row& row : rows) {
        samples.push_back(
            {{"mode", row.mode}, {"bytes", row.bytes}, {"microseconds", row.microseconds}});
      }
      std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(arguments.json.c_str(), "w"), fclose);
      if (file == nullptr) {
        throw std::runtime_error("cannot write " + arguments.json);
      }
      fmt::print(file.get(), "{}\n", samples.dump());
    }
    return status == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gtopk-bench-messages: {}\n", error.what());
    return 1;
  }
}
