// Collectives: one call for several tensors. The tensors are sent as one, so a list costs the
// rounds of one collective, takes one number and is one agreement, which detects lists of different
// lengths.
#include <utility>

#include "gtopk/collectives.hpp"

namespace gtopk {

Collective coalesced(Collective one, std::span<const std::uint64_t> sizes) {
  one.name += "_coalesced";
  one.agreement.number("tensors", sizes.size()).numbers("sizes", sizes);
  return one;
}

}  // namespace gtopk
