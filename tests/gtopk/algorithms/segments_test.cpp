// Sparse, algorithms: a tensor in pieces gives the same result as in one, bit for bit,
// whatever each rank's cuts; and what was delivered is noted beside it.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::Tensor;

/// A tensor's bytes, with memory of its own for each piece.
class Pieces {
 public:
  Pieces(const Tensor& tensor, std::size_t element, std::uint64_t d, std::mt19937_64& random) {
    const std::byte* from = tensor.values.data();
    for (const std::size_t length : sparse::testing::random_cuts(d, d + 1, random)) {
      blocks_.emplace_back(from, from + length * element);
      segments_.push_back({blocks_.back().data(), length});
      from += length * element;
    }
  }
  [[nodiscard]] sparse::Segments<void> segments() const {
    return sparse::Segments<void>(std::span<const Segment>(segments_));
  }
  [[nodiscard]] reference::Bytes joined() const {
    reference::Bytes whole;
    for (const reference::Bytes& block : blocks_) {
      whole.insert(whole.end(), block.begin(), block.end());
    }
    return whole;
  }

 private:
  std::vector<reference::Bytes> blocks_;
  std::vector<Segment> segments_;
};

struct Note {
  std::vector<std::int64_t> indices;
  reference::Bytes values;
};

/// A note's contents by index, zeros left out: `dense` notes all elements and no indices.
std::map<std::uint64_t, double> read(const Note& note, DataType type, bool dense) {
  std::map<std::uint64_t, double> entries;
  for (std::size_t i = 0; i < note.indices.size(); ++i) {
    const double value = reference::load(type, note.values, i);
    const auto index = static_cast<std::uint64_t>(note.indices[i]);
    if (value != 0) {
      entries[dense ? i : index] = value;
    }
  }
  return entries;
}

std::map<std::uint64_t, double> without_zeros(std::map<std::uint64_t, double> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.second == 0; });
  return entries;
}

// Every algorithm, 4 types, 5 numbers of ranks: 960 random cases.
TEST(TensorInPieces, TensorResidualsAndDelivered_MatchReference) {
  std::uint64_t delivered = 0;
  for (std::uint64_t seed = 1; seed <= 960; ++seed) {
    const std::string algorithm = reference::one_of(reference::algorithms(), seed);
    const DataType type = reference::one_of(reference::kFloatingTypes, seed / 4);
    const DataType acc_type = accumulation_type(type);
    const std::uint32_t size = std::vector{1U, 2U, 3U, 4U, 6U}[seed / 16 % 5];
    reference::Case drawn = reference::random_case(seed, type, size, algorithm);
    drawn.problem.options.wire = reference::one_of(reference::wires(algorithm), seed / 5);
    const reference::Problem& problem = drawn.problem;
    const reference::Outcome expected = reference::all_reduce(problem);
    std::mt19937_64 random(seed);
    std::vector<Tensor> tensors;
    std::vector<Pieces> pieces;
    std::vector<Note> notes(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
      pieces.emplace_back(tensors[rank], size_of(type), problem.d, random);
      notes[rank].indices.resize(problem.d);
      notes[rank].values = reference::zeros(acc_type, problem.d);
    }
    InprocRanks ranks(size, support::network(seed));
    const auto endings = ranks.run([&](std::uint32_t rank) {
      sparse::SparseCall call;
      call.tensor = pieces[rank].segments();
      call.residual = tensors[rank].residual ? tensors[rank].residual->data() : nullptr;
      call.d = problem.d;
      call.dtype = type;
      call.options = problem.options;
      if (seed % 3 != 0) {
        call.delivered = {notes[rank].indices.data(), notes[rank].values.data(), problem.d};
      }
      return sparse::collective(call);
    });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << drawn.description << ": " << endings[rank]->text();
      ASSERT_EQ(reference::difference(type, expected.tensor, pieces[rank].joined()), "")
          << drawn.description;
      if (tensors[rank].residual) {
        ASSERT_EQ(
            reference::difference(acc_type, *expected.residuals[rank], *tensors[rank].residual), "")
            << drawn.description;
      }
      const bool noted = expected.happened && seed % 3 != 0;
      const auto entries =
          noted ? without_zeros(expected.delivered) : decltype(expected.delivered){};
      ASSERT_EQ(read(notes[rank], acc_type, algorithm.starts_with("dense")), entries)
          << drawn.description;
      delivered += entries.size();
    }
    ASSERT_TRUE(ranks.close().empty()) << drawn.description;
  }
  EXPECT_GT(delivered, 1000U);
}

TEST(TensorInPieces, TooLittleCapacityForWhatIsDeliveredIsRefused) {
  const auto refusal = [](const char* algorithm, std::uint64_t capacity, bool noted = true) {
    float value = 0;
    sparse::SparseCall call;
    call.d = 100;
    call.options.k = 10;
    call.options.algorithm = algorithm;
    call.delivered = {nullptr, noted ? &value : nullptr, capacity};
    try {
      const Collective collective = sparse::collective(call);
      if (collective.check) {
        collective.check({.name = "default", .rank = 0, .size = 3});
      }
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("gtopk", 10), "");
  EXPECT_EQ(refusal("gtopk", 9),
            "sparse_all_reduce(gtopk) among 3 ranks delivers up to 10 entries, but there is room "
            "to record only 9");
  EXPECT_EQ(refusal("topk", 30), "");
  EXPECT_NE(refusal("topk", 29), "");
  for (const char* const algorithm : {"rs-ag", "exact", "sketch", "random-k", "true-topk"}) {
    EXPECT_EQ(refusal(algorithm, 10), "");
    EXPECT_NE(refusal(algorithm, 9), "");
  }
  EXPECT_EQ(refusal("dense", 100), "");
  EXPECT_NE(refusal("dense", 99), "");
  EXPECT_EQ(refusal("dense", 0, false), "");
}

}  // namespace
}  // namespace gtopk
