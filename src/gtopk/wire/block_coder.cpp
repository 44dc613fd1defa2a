#include "src/gtopk/wire/block_coder.hpp"

#include <algorithm>

#include "src/gtopk/wire/block_formats.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

template <class Format>
class Blocks final : public BlockCoder {
 public:
  [[nodiscard]] std::size_t block() const override { return Format::kBlock; }
  [[nodiscard]] std::size_t bytes(DataType value, std::size_t count) const override {
    return value == DataType::kFloat64 ? bytes_of<double>(count) : bytes_of<float>(count);
  }
  void encode(const float* values, std::size_t count, std::byte* out) const override {
    encode_all(values, count, out);
  }
  void encode(const double* values, std::size_t count, std::byte* out) const override {
    encode_all(values, count, out);
  }
  void decode(const std::byte* in, std::size_t count, float* values) const override {
    decode_all(in, count, values);
  }
  void decode(const std::byte* in, std::size_t count, double* values) const override {
    decode_all(in, count, values);
  }

 private:
  static constexpr std::size_t kBlock = Format::kBlock;

  template <class Value>
  static std::size_t bytes_of(std::size_t count) {
    const std::size_t rest = count % kBlock;
    return count / kBlock * Format::template bytes<Value>(kBlock) +
           (rest == 0 ? 0 : Format::template bytes<Value>(rest));
  }
  template <class Value>
  static void encode_all(const Value* values, std::size_t count, std::byte* out) {
    const KeepDenormals guard;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      Format::encode(values + begin, std::min(kBlock, count - begin), out);
      out += Format::template bytes<Value>(kBlock);
    }
  }
  template <class Value>
  static void decode_all(const std::byte* in, std::size_t count, Value* values) {
    const KeepDenormals guard;
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      Format::decode(in, std::min(kBlock, count - begin), values + begin);
      in += Format::template bytes<Value>(kBlock);
    }
  }
};

const Blocks<HalfBlocks<Bfloat16>> kBf16Blocks;
const Blocks<HalfBlocks<Float16>> kFp16Blocks;
const Blocks<Int8Blocks> kInt8Blocks;
const Blocks<FourBitBlocks> kFourBitBlocks;
const Blocks<LevelBlocks<2>> kTwoBitBlocks;
const Blocks<LevelBlocks<1>> kSignBlocks;

}  // namespace

const BlockCoder& bf16_blocks() { return kBf16Blocks; }
const BlockCoder& fp16_blocks() { return kFp16Blocks; }
const BlockCoder& int8_blocks() { return kInt8Blocks; }
const BlockCoder& four_bit_blocks() { return kFourBitBlocks; }
const BlockCoder& two_bit_blocks() { return kTwoBitBlocks; }
const BlockCoder& sign_blocks() { return kSignBlocks; }

}  // namespace gtopk::sparse
