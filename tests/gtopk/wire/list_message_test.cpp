// Sparse, wire room: a list comes out of a message as it went in, for every width of value and
// index; what is damaged is refused with the reason, and nothing is read outside the message.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "gtopk/algorithms/exchange.hpp"
#include "gtopk/algorithms/gtopk.hpp"
#include "gtopk/algorithms/gtopk_tree.hpp"
#include "gtopk/wire/list_message.hpp"
#include "support/cases.hpp"
#include "support/inproc_ranks.hpp"

namespace gtopk::sparse {
namespace {

template <class V, class I>
struct Widths {
  using Value = V;
  using Index = I;
};
using EveryWidth = ::testing::Types<Widths<float, std::uint32_t>, Widths<float, std::uint64_t>,
                                    Widths<double, std::uint32_t>, Widths<double, std::uint64_t>>;

template <class W>
class ListMessageTest : public ::testing::Test {
 protected:
  using Value = typename W::Value;
  using Index = typename W::Index;
  using List = ListMessage<Value, Index>;

  ListMessageTest() {
    signature_.collective = collectives::Collective::kSparseAllReduce;
    signature_.d = 1000;
    signature_.k = 10;
  }

  List sealed(std::vector<std::byte>& storage, std::size_t capacity, std::size_t count) const {
    storage.resize(List::bytes_for(capacity));
    List list(storage, capacity);
    const EntriesOut<Value, Index> room = list.room();
    for (std::size_t i = 0; i < count; ++i) {
      room.indices[i] = static_cast<Index>(7 * i + 3);
      room.values[i] = static_cast<Value>(i) - Value{2.5};
    }
    list.seal(signature_, 7, count, true);
    return list;
  }

  /// Opens `bytes` in a room of exactly its own allocation, so that a sanitizer sees every byte too
  /// far.
  std::string refusal(std::span<const std::byte> bytes, std::size_t capacity) {
    std::vector<std::byte> room(List::bytes_for(capacity));
    std::memcpy(room.data(), bytes.data(), std::min(bytes.size(), room.size()));
    List list(room, capacity);
    try {
      list.open(std::min(bytes.size(), room.size()), signature_, view_, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      return error.what();
    }
    return {};
  }

  support::InprocRanks ranks_{3};
  engine::Operation operation_{ranks_.engine(1), ranks_.group(1), 7, {}};
  engine::GroupView view_{operation_};
  collectives::Signature signature_;
};
TYPED_TEST_SUITE(ListMessageTest, EveryWidth);

TYPED_TEST(ListMessageTest, ComesBackAsItWentInForEveryCount) {
  using List = typename TestFixture::List;
  for (std::size_t capacity = 0; capacity <= 10; ++capacity) {
    for (std::size_t count = 0; count <= capacity; ++count) {
      std::vector<std::byte> storage;
      const List list = this->sealed(storage, capacity, count);
      ASSERT_EQ(list.bytes().size(), collectives::kHeaderBytes + count * List::kEntryBytes);
      std::vector<std::byte> room(List::bytes_for(10));
      std::memcpy(room.data(), list.bytes().data(), list.bytes().size());
      List received(room, 10);
      received.open(list.bytes().size(), this->signature_, this->view_, 2);
      ASSERT_TRUE(received.finite());
      ASSERT_EQ(received.entries().size, count);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(received.entries().indices[i], 7 * i + 3);
        ASSERT_EQ(static_cast<double>(received.entries().values[i]), static_cast<double>(i) - 2.5);
      }
      ASSERT_EQ(received.bytes().size(), list.bytes().size());
      ASSERT_EQ(std::memcmp(received.bytes().data(), list.bytes().data(), list.bytes().size()), 0);
    }
  }
}

TYPED_TEST(ListMessageTest, ThatIsNotFiniteTravelsWithoutEntries) {
  using List = typename TestFixture::List;
  std::vector<std::byte> storage(List::bytes_for(5));
  List list(storage, 5);
  list.seal(this->signature_, 7, 5, false);
  EXPECT_EQ(list.bytes().size(), collectives::kHeaderBytes);
  List received(storage, 5);
  received.open(collectives::kHeaderBytes, this->signature_, this->view_, 2);
  EXPECT_FALSE(received.finite());
  EXPECT_EQ(received.entries().size, 0U);
}

TYPED_TEST(ListMessageTest, CutOrPaddedAnywhereIsRefused) {
  std::vector<std::byte> storage;
  const auto list = this->sealed(storage, 8, 5);
  std::vector<std::byte> bytes(list.bytes().begin(), list.bytes().end());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(this->refusal(std::span(bytes).first(length), 8).empty()) << length;
  }
  EXPECT_EQ(this->refusal(bytes, 8), "");
  bytes.push_back({});
  EXPECT_NE(this->refusal(bytes, 8).find("damaged"), std::string::npos);
}

TYPED_TEST(ListMessageTest, WithMoreEntriesThanItHasRoomForIsRefused) {
  std::vector<std::byte> storage;
  const auto list = this->sealed(storage, 8, 8);
  EXPECT_FALSE(this->refusal(list.bytes(), 7).empty());
}

TYPED_TEST(ListMessageTest, WithACountThatWrapsAroundIsRefused) {
  using List = typename TestFixture::List;
  std::vector<std::byte> storage;
  const auto list = this->sealed(storage, 8, 5);
  std::vector<std::byte> bytes(list.bytes().begin(), list.bytes().end());
  for (const std::uint64_t count :
       {std::uint64_t{6}, ~std::uint64_t{0}, ~std::uint64_t{0} / List::kEntryBytes + 6,
        std::uint64_t{1} << 63U, (std::uint64_t{1} << 62U) + 5}) {
    std::memcpy(bytes.data() + offsetof(collectives::Header, count), &count, sizeof count);
    EXPECT_NE(this->refusal(bytes, 8).find("damaged"), std::string::npos) << count;
  }
}

TYPED_TEST(ListMessageTest, WithIndicesOutOfOrderTwiceOrBeyondDIsRefused) {
  using List = typename TestFixture::List;
  using Index = typename TestFixture::Index;
  const std::vector<std::vector<Index>> wrong = {
      {2, 1, 3}, {1, 1, 3}, {1, 3, 3}, {1, 2, 1000}, {1, 2, static_cast<Index>(~Index{0})}};
  for (const std::vector<Index>& indices : wrong) {
    std::vector<std::byte> storage(List::bytes_for(3));
    List list(storage, 3);
    std::copy(indices.begin(), indices.end(), list.room().indices);
    std::fill_n(list.room().values, 3, 1);
    list.seal(this->signature_, 7, 3, true);
    EXPECT_NE(this->refusal(list.bytes(), 3).find("indices not ascending below 1000"),
              std::string::npos);
  }
}

TYPED_TEST(ListMessageTest, WithOtherIndexWidthIsRefused) {
  std::vector<std::byte> storage;
  const auto list = this->sealed(storage, 3, 3);
  std::vector<std::byte> bytes(list.bytes().begin(), list.bytes().end());
  std::byte& width = bytes[offsetof(collectives::Header, index_bytes)];
  width = width == std::byte{4} ? std::byte{8} : std::byte{4};
  EXPECT_NE(this->refusal(bytes, 3).find("-byte indices"), std::string::npos);
}

// The walk itself, with 64-bit indices and values of either type, beyond 2^32.
TYPED_TEST(ListMessageTest, WalksTheTreeWithIndicesOfItsWidth) {
  using List = typename TestFixture::List;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  const Index base = sizeof(Index) == 8 ? static_cast<Index>(std::uint64_t{1} << 40U) : Index{0};
  for (const Algorithm algorithm : {Algorithm::kGtopk, Algorithm::kGtopkTree}) {
    for (const std::uint32_t size : {1U, 2U, 3U, 5U, 8U}) {
      support::InprocRanks ranks(size);
      collectives::Signature signature = this->signature_;
      signature.d = static_cast<std::uint64_t>(base) + 100;
      signature.k = 2;
      std::vector<std::vector<Index>> indices(size);
      std::vector<std::vector<Value>> values(size);
      const auto endings = ranks.run([&](std::uint32_t rank) {
        engine::OperationSpec spec;
        spec.name = "walk";
        spec.body = [&, rank](engine::GroupView& group) -> engine::Task<void> {
          Exchange<Value, Index> exchange(group, signature, true, ranks.workspace(rank).merge);
          List own = exchange.make(2);
          own.room().indices[0] = base + 1;  // all ranks have it
          own.room().values[0] = 1;
          own.room().indices[1] = base + 10 + static_cast<Index>(rank);
          own.room().values[1] = static_cast<Value>(0.5);
          exchange.seal(own, 2, true);
          engine::Task<List> walking =
              algorithm == Algorithm::kGtopk ? gtopk(exchange, own) : gtopk_tree(exchange, own);
          const List result = co_await walking;
          const Entries<Value, Index> entries = result.entries();
          indices[rank].assign(entries.indices, entries.indices + entries.size);
          values[rank].assign(entries.values, entries.values + entries.size);
        };
        return spec;
      });
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
        EXPECT_EQ(indices[rank], (std::vector<Index>{static_cast<Index>(base + 1),
                                                     static_cast<Index>(base + 10)}));
        EXPECT_EQ(values[rank], (std::vector<Value>{static_cast<Value>(size), Value{0.5}}));
      }
    }
  }
}

}  // namespace
}  // namespace gtopk::sparse
