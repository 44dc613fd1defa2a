// Tests of the UCX transport's diagnosis: what a plain connection to a peer's port finds out.
#include "src/transport/ucx/tcp_address.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace gtopk::transport {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// A port of the loopback interface; it listens if it has a backlog.
class Port {
 public:
  explicit Port(int backlog) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    if (backlog >= 0) {
      EXPECT_EQ(listen(socket_, backlog), 0);
    }
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port() { close(socket_); }

  [[nodiscard]] TcpAddress address() const {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    return to_tcp_address(address).value_or(TcpAddress());
  }

 private:
  int socket_;
};

TEST(DiagnoseConnections, PortThatNothingListensOn_RefusesThem) {
  const Port closed(-1);
  EXPECT_THAT(diagnose_connections({closed.address()}, 10s),
              AllOf(HasSubstr(to_string({closed.address()}) + " refuses connections"),
                    HasSubstr("UCX_TCP_PORT_RANGE")));
}

TEST(DiagnoseConnections, ListeningPort_AcceptsThem) {
  const Port open(8);
  EXPECT_EQ(diagnose_connections({open.address()}, 10s),
            to_string({open.address()}) + " accepts connections now");
}

// The kernel drops what no longer fits into the queue of a port, as a firewall would.
TEST(DiagnoseConnections, DroppedPackets_AreNoAnswer) {
  const Port full(0);
  const std::vector<TcpAddress> queue(8, full.address());
  static_cast<void>(diagnose_connections(queue, 50ms));
  const std::string last = diagnose_connections(queue, 50ms);
  EXPECT_THAT(last, AllOf(HasSubstr(to_string({full.address()}) + " does not answer"),
                          HasSubstr("UCX_TCP_PORT_RANGE"), HasSubstr("UCX_NET_DEVICES")));
}

TEST(DiagnoseConnections, AddressWithoutRoute_IsNamedWithReason) {
  // Multicast: TCP cannot connect to it.
  EXPECT_THAT(diagnose_connections({{.host = "224.0.0.1", .port = 9}}, 10s),
              AllOf(HasSubstr("no route from here to 224.0.0.1:9 (Network is unreachable)"),
                    HasSubstr("UCX_NET_DEVICES")));
}

TEST(DiagnoseConnections, SeveralAddresses_AreAllNamed) {
  const Port open(8);
  const Port closed(-1);
  EXPECT_THAT(diagnose_connections({open.address(), closed.address()}, 10s),
              AllOf(HasSubstr(to_string({open.address()}) + " accepts"),
                    HasSubstr("; " + to_string({closed.address()}) + " refuses")));
  EXPECT_THAT(diagnose_connections({}, 10s), IsEmpty());
}

struct FamilyCase {
  const char* name;
  std::vector<TcpAddress> here;
  std::vector<TcpAddress> there;
  bool differ;
};

class DiagnoseFamilies : public testing::TestWithParam<FamilyCase> {};

const TcpAddress kIpv4{.host = "10.0.0.1", .port = 4000};
const TcpAddress kIpv6{.host = "fd77::1", .port = 4001};
const TcpAddress kLoopback{.host = "127.0.0.1", .port = 4002};

INSTANTIATE_TEST_SUITE_P(
    Hosts, DiagnoseFamilies,
    testing::Values(FamilyCase{"Ipv4AndIpv6", {kIpv4, kLoopback}, {kIpv6, kLoopback}, true},
                    FamilyCase{"Ipv6AndIpv4", {kIpv6}, {kIpv4}, true},
                    FamilyCase{"SameFamily", {kIpv4}, {kIpv4}, false},
                    FamilyCase{"OneInCommon", {kIpv4, kIpv6}, {kIpv6}, false},
                    FamilyCase{"LoopbackAlone", {kLoopback}, {kLoopback}, false},
                    FamilyCase{"NothingKnown", {}, {kIpv6}, false}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(DiagnoseFamilies, DifferentFamilies_NameBothHostsAndSetting) {
  const FamilyCase& hosts = GetParam();
  const std::string text = diagnose_families(hosts.here, hosts.there);
  if (!hosts.differ) {
    EXPECT_THAT(text, IsEmpty());
    return;
  }
  EXPECT_THAT(text, AllOf(HasSubstr("IPv4"), HasSubstr("IPv6"), HasSubstr("10.0.0.1:4000"),
                          HasSubstr("[fd77::1]:4001"), HasSubstr("UCX_TCP_AF_PRIO=inet6,inet")));
}

}  // namespace
}  // namespace gtopk::transport
