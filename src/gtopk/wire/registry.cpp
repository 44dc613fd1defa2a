#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/coded.hpp"
#include "src/gtopk/wire/raw.hpp"

namespace gtopk {

std::vector<Choice> wires() { return sparse::codec_registry().choices(); }

namespace sparse {

Registry<CodecRow>& codec_registry() {
  static Registry<CodecRow> registry(
      "wire", {&kRaw, &kLossless, &kBf16, &kFp16, &kInt8, &k4Bit, &k2Bit, &kTernary, &kSign});
  return registry;
}

}  // namespace sparse
}  // namespace gtopk
