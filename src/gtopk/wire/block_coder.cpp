#include "src/gtopk/wire/block_coder.hpp"

#include <algorithm>
#include <type_traits>

#include "src/gtopk/wire/block_formats.hpp"
#include "src/gtopk/wire/code_blocks.hpp"
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
  /// Codes whole blocks of float32 in SIMD if the format supports it.
  template <class Value>
  static constexpr bool kEncodesInSimd =
      std::is_same_v<Value, float> && requires { Format::encode_blocks; };
  template <class Value>
  static constexpr bool kDecodesInSimd =
      std::is_same_v<Value, float> && requires { Format::decode_blocks; };

  template <class Value>
  static void encode_all(const Value* values, std::size_t count, std::byte* out) {
    const KeepDenormals guard;
    std::size_t begin = 0;
    if constexpr (kEncodesInSimd<Value>) {
      const std::size_t blocks = count / kBlock;
      Format::encode_blocks(values, blocks, out);
      begin = blocks * kBlock;
      out += blocks * Format::template bytes<Value>(kBlock);
    }
    for (; begin < count; begin += kBlock) {
      Format::encode(values + begin, std::min(kBlock, count - begin), out);
      out += Format::template bytes<Value>(kBlock);
    }
  }
  template <class Value>
  static void decode_all(const std::byte* in, std::size_t count, Value* values) {
    const KeepDenormals guard;
    std::size_t begin = 0;
    if constexpr (kDecodesInSimd<Value>) {
      const std::size_t blocks = count / kBlock;
      Format::decode_blocks(in, blocks, values);
      begin = blocks * kBlock;
      in += blocks * Format::template bytes<Value>(kBlock);
    }
    for (; begin < count; begin += kBlock) {
      Format::decode(in, std::min(kBlock, count - begin), values + begin);
      in += Format::template bytes<Value>(kBlock);
    }
  }
};

struct Bf16InSimd : HalfBlocks<Bfloat16> {
  static constexpr auto* encode_blocks = encode_bf16_blocks;
};
struct Fp16InSimd : HalfBlocks<Float16> {
  static constexpr auto* encode_blocks = encode_fp16_blocks;
};
struct Int8InSimd : Int8Blocks {
  static constexpr auto* encode_blocks = encode_int8_blocks;
  static constexpr auto* decode_blocks = decode_int8_blocks;
};
struct FourBitsInSimd : FourBitBlocks {
  static constexpr auto* encode_blocks = encode_four_bit_blocks;
  static constexpr auto* decode_blocks = decode_four_bit_blocks;
};

struct TwoBitsInSimd : LevelBlocks<2> {
  static constexpr auto* encode_blocks = encode_two_bit_blocks;
};
struct TernaryInSimd : TernaryBlocks {
  static constexpr auto* encode_blocks = encode_ternary_blocks;
  static constexpr auto* decode_blocks = decode_ternary_blocks;
};
struct SignInSimd : LevelBlocks<1> {
  static constexpr auto* encode_blocks = encode_sign_blocks;
};

const Blocks<Bf16InSimd> kBf16Blocks;
const Blocks<Fp16InSimd> kFp16Blocks;
const Blocks<Int8InSimd> kInt8Blocks;
const Blocks<FourBitsInSimd> kFourBitBlocks;
const Blocks<TwoBitsInSimd> kTwoBitBlocks;
const Blocks<TernaryInSimd> kTernaryBlocks;
const Blocks<SignInSimd> kSignBlocks;

}  // namespace

const BlockCoder& bf16_blocks() { return kBf16Blocks; }
const BlockCoder& fp16_blocks() { return kFp16Blocks; }
const BlockCoder& int8_blocks() { return kInt8Blocks; }
const BlockCoder& four_bit_blocks() { return kFourBitBlocks; }
const BlockCoder& two_bit_blocks() { return kTwoBitBlocks; }
const BlockCoder& ternary_blocks() { return kTernaryBlocks; }
const BlockCoder& sign_blocks() { return kSignBlocks; }

}  // namespace gtopk::sparse
