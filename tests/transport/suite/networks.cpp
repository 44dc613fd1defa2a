// The transports that the suite runs over, a row each.
#include <algorithm>
#include <iterator>

#include "tests/transport/suite/inproc_network.hpp"
#include "tests/transport/suite/network.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {

const std::vector<NetworkKind>& networks() {
  static const std::vector<NetworkKind> kRows = {
      {.name = "InprocEager", .make = inproc_network({.eager_below = SIZE_MAX}), .seeds = 10},
      {.name = "InprocRendezvous",
       .make = inproc_network({.eager_below = 0}),
       .seeds = 10,
       .sends_ahead = false},
      {.name = "InprocDelayed",
       .make = inproc_network({.eager_below = 1024, .max_delay = std::chrono::microseconds(100)}),
       .seeds = 10},
      {.name = "UcxTcp", .make = ucx_network("tcp,self"), .seeds = 2, .asks_for_addresses = true},
      {.name = "UcxThreeConnections",
       .make = ucx_network("tcp,self", 3),
       .asks_for_addresses = true},
      {.name = "UcxSharedMemory",
       .make = ucx_network("tcp,posix,sysv,self"),
       .seeds = 2,
       .tells_of_ends = false,  // shared memory watches processes, and here is only one
       .asks_for_addresses = true},
  };
  return kRows;
}

std::vector<NetworkKind> networks_that(bool NetworkKind::*trait) {
  std::vector<NetworkKind> rows;
  std::ranges::copy_if(networks(), std::back_inserter(rows), trait);
  return rows;
}

}  // namespace gtopk::test
