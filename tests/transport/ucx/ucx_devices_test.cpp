// Tests of messages in memory of a device's: which peers take them, and what GTOPK_DEVICE_POINTERS
// says. UCX is handed memory of the host's in its place, so it never sees a GPU here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/ucx/config.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using transport::DevicePointers;
using transport::takes_devices;

constexpr const char* kVariable = "GTOPK_DEVICE_POINTERS";

TEST(UcxDevices, AreTakenWhereUcxHasAWayForThem) {
  struct Row {
    const char* tls;
    bool same_host;
    bool others;
  };
  for (const Row& row : {
           Row{"tcp,posix,sysv,self", false, false},
           Row{"tcp,posix,self,cuda_copy", false, false},
           Row{"tcp,posix,self,cuda_copy,cuda_ipc", true, false},
           Row{"tcp,self,cuda", true, false},
           Row{"rc,self,sm,cuda_copy,cuda_ipc", true, true},
           Row{"rc_mlx5,cuda_copy", false, true},
           Row{"all", true, true},
           Row{"^posix", true, true},
           Row{"", true, true},
       }) {
    EXPECT_EQ(takes_devices(DevicePointers::kAuto, true, row.tls, true), row.same_host) << row.tls;
    EXPECT_EQ(takes_devices(DevicePointers::kAuto, true, row.tls, false), row.others) << row.tls;
    for (const bool same_host : {false, true}) {
      EXPECT_FALSE(takes_devices(DevicePointers::kAuto, false, row.tls, same_host)) << row.tls;
      EXPECT_FALSE(takes_devices(DevicePointers::kNever, true, row.tls, same_host)) << row.tls;
      EXPECT_TRUE(takes_devices(DevicePointers::kAlways, true, row.tls, same_host)) << row.tls;
      EXPECT_TRUE(takes_devices(DevicePointers::kAsHost, false, row.tls, same_host)) << row.tls;
    }
  }
}

TEST(UcxDevices, AreNotTakenUnlessSomebodySaysSo) {
  Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
  EXPECT_TRUE(mesh[0].takes(Memory::Kind::kHost, mesh.ids[0][1]));
  EXPECT_FALSE(mesh[0].takes(Memory::Kind::kCuda, mesh.ids[0][1]));
  EXPECT_THAT(mesh[0].describe(), Not(HasSubstr("device memory")));
}

TEST(UcxDevices, SendAndReceiveWhatEitherEndHasThere) {
  setenv(kVariable, "host", 1);
  Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
  unsetenv(kVariable);
  ASSERT_TRUE(mesh[0].takes(Memory::Kind::kCuda, mesh.ids[0][1]));
  EXPECT_THAT(mesh[0].describe(), HasSubstr("device memory goes to UCX: to all ranks"));
  transport::Tag tag = 0;
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20U}) {
    for (const auto& [sends, receives] : {std::pair{true, false}, {false, true}, {true, true}}) {
      ++tag;
      Message sent(pattern(size, static_cast<unsigned>(tag)));
      Message received(size);
      const auto memory = [](bool there) { return there ? cuda_memory(0) : Memory{}; };
      mesh[1].recv(mesh.ids[1][0], tag,
                   gtopk::Bytes(std::as_writable_bytes(std::span(received.bytes)).data(), size,
                                memory(receives)),
                   received.request);
      mesh[0].send(mesh.ids[0][1], tag,
                   ConstBytes(std::as_bytes(std::span(sent.bytes)).data(), size, memory(sends)),
                   sent.request);
      ASSERT_TRUE(progress_until([&] { return mesh.move(); },
                                 [&] { return sent.done() && received.done(); }));
      EXPECT_EQ(received.status(), Status::kOk);
      EXPECT_EQ(sent.status(), Status::kOk);
      EXPECT_TRUE(received.text() == sent.bytes) << size;
    }
  }
}

TEST(UcxDevices, TransportsWithoutCuda_AreRefusedAtStart) {
  setenv(kVariable, "1", 1);
  try {
    static_cast<void>(transport::make_ucx_transport({.settings = {{"TLS", "tcp,self"}}}));
    ADD_FAILURE() << "UCX would read the memory itself";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("UCX has found no CUDA here (UCX "));
    EXPECT_THAT(error.what(), HasSubstr("UCX_TLS=tcp,self"));
  }
  unsetenv(kVariable);
}

TEST(UcxDevices, VariableIsCheckedWhenUcxStarts) {
  for (const char* const value : {"", "yes", "2", "AUTO"}) {
    setenv(kVariable, value, 1);
    try {
      static_cast<void>(transport::make_ucx_transport());
      ADD_FAILURE() << "'" << value << "' is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(),
                  HasSubstr(fmt::format(
                      "GTOPK_DEVICE_POINTERS is '{}': expected auto, 0, 1 or host", value)));
    }
  }
  setenv(kVariable, "0", 1);
  Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
  EXPECT_FALSE(mesh[0].takes(Memory::Kind::kCuda, mesh.ids[0][1]));
  unsetenv(kVariable);
}

}  // namespace
}  // namespace gtopk::test
