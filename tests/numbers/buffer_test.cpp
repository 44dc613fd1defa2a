// Buffers: what they convert from, and how many elements bytes hold.
#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gtopk/buffer.hpp"
#include "gtopk/error.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk {
namespace {

TEST(Buffer, KnowsTheTypesOfTheTable) {
  std::size_t known = 0;
  std::apply(
      [&]<class... Rows>(const Rows&... rows) {
        const auto look = [&]<class T>(const Element<T>& row) {
          if constexpr (NativeElement<T>) {
            EXPECT_EQ(type_of<T>(), row.type) << row.name;
            ++known;
          }
        };
        (look(rows), ...);
      },
      kElementTypes);
  EXPECT_EQ(known, 10U);  // but halves, complex numbers, and Bool, which is bool
  EXPECT_EQ(type_of<bool>(), DataType::kBool);
  EXPECT_EQ(type_of<std::byte>(), DataType::kUint8);
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "none";
}

TEST(Buffer, OfElementsInNoMemoryIsRefused) {
  EXPECT_EQ(refusal_of([] { static_cast<void>(Buffer(nullptr, 3, DataType::kFloat32)); }),
            "a buffer of 3 elements of float32 needs memory, but its pointer is null");
  EXPECT_EQ(refusal_of([] { static_cast<void>(ConstBuffer(nullptr, 1, DataType::kInt8)); }),
            "a buffer of 1 elements of int8 needs memory, but its pointer is null");
  EXPECT_EQ(refusal_of([] { static_cast<void>(Buffer(nullptr, 0, DataType::kFloat32)); }), "none");
}

TEST(SelectionSize, OfBlocksOfNoElementsIsRefused) {
  EXPECT_EQ(refusal_of([] { static_cast<void>(selection_size(9, 0.5, 0)); }),
            "the selection's blocks have 0 elements, expected at least 1");
}

TEST(Buffer, ConvertsFromRangesOfTheHosts) {
  std::vector<float> values(7);
  const Buffer all = values;
  EXPECT_EQ(all.data, values.data());
  EXPECT_EQ(all.count, 7U);
  EXPECT_EQ(all.dtype, DataType::kFloat32);
  EXPECT_TRUE(all.memory.is_host());
  EXPECT_EQ(all.bytes().size(), 28U);
  const ConstBuffer some = std::span(values).subspan(2, 3);
  EXPECT_EQ(some.data, &values[2]);
  EXPECT_EQ(some.count, 3U);
  const std::array<std::int64_t, 2> constant{};
  EXPECT_EQ(ConstBuffer(constant).dtype, DataType::kInt64);
  static_assert(!std::is_convertible_v<const std::array<std::int64_t, 2>&, Buffer>);
  static_assert(!std::is_convertible_v<std::vector<std::complex<float>>&, Buffer>);
  static_assert(!std::is_convertible_v<ConstBuffer, Buffer>);
  static_assert(!std::is_convertible_v<Bytes, std::span<std::byte>>);
}

TEST(Buffer, OfMoreThanCanBeAddressedIsAnError) {
  float one = 0;
  constexpr std::uint64_t kMost = ~std::uint64_t{0} / sizeof(float);
  EXPECT_EQ(Buffer(&one, kMost, DataType::kFloat32).bytes().size(), kMost * sizeof(float));
  for (const std::uint64_t count : {kMost + 1, ~std::uint64_t{0}}) {
    EXPECT_THROW((void)Buffer(&one, count, DataType::kFloat32).bytes(), Error) << count;
  }
}

TEST(Buffer, OfADeviceStaysThere) {
  std::array<std::byte, 24> bytes{};
  const Buffer there(Bytes(bytes.data(), bytes.size(), cuda_memory(3)), DataType::kFloat64);
  EXPECT_EQ(there.count, 3U);
  EXPECT_EQ(there.bytes().memory(), cuda_memory(3));
  const ConstBytes part = ConstBuffer(there).bytes().subspan(8, 8);
  EXPECT_EQ(part.memory(), cuda_memory(3));
  EXPECT_EQ(part.data(), bytes.data() + 8);
  EXPECT_EQ(to_string(part.memory()), "cuda:3");
  EXPECT_EQ(to_string(Memory{}), "host");
}

TEST(Buffer, HoldsWholeElements) {
  std::array<std::byte, 10> bytes{};
  EXPECT_EQ(Buffer(bytes, DataType::kBfloat16).count, 5U);
  EXPECT_EQ(Buffer(bytes, opaque_type(9)).count, 10U);  // of a size that nobody knows
  EXPECT_EQ(Buffer(bytes, opaque_type(9)).bytes().size(), 10U);
  try {
    const Buffer none(bytes, DataType::kInt32);
    ADD_FAILURE() << none.count;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()),
              "10 bytes are not a whole number of elements of int32, of 4 bytes each");
  }
}

}  // namespace
}  // namespace gtopk
