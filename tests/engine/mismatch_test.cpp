// Engine and collectives: when ranks call different things, all get an error that names both sides'
// values; then the group still works. Every mismatch at every rank, for every algorithm, in eager
// and rendezvous networks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>

#include <fmt/format.h>

#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::kSanitized;
using support::network;

/// How errors print a call.
std::string text_of(const sparse::SparseCall& call) {
  return sparse::agreement(call, sparse::resolve(call)).text();
}

/// One rank's call with memory of its own, and how errors print it.
struct Call {
  explicit Call(const sparse::SparseCall& shape)
      : tensor(reference::zeros(shape.dtype, shape.d)), text(text_of(shape)) {
    call = shape;
    for (std::uint64_t i = 0; i < shape.d; ++i) {
      reference::store(shape.dtype, tensor, i, 1.0 + static_cast<double>(i % 7));
    }
    before = tensor;
    call.tensor = tensor.data();
  }
  reference::Bytes tensor;
  reference::Bytes before;
  std::string text;
  sparse::SparseCall call;
};

sparse::SparseCall usual(const std::string& algorithm, std::uint64_t d) {
  sparse::SparseCall call;
  call.d = d;
  call.dtype = DataType::kFloat32;
  call.options.k = 20;
  call.options.algorithm = algorithm;
  return call;
}

sparse::SparseCall long_list() {
  sparse::SparseCall call = usual("gtopk", sparse::kAcknowledgedBytes);
  call.options.k = call.d / 2;
  call.options.wire = "raw";
  return call;
}

const std::map<std::string, void (*)(sparse::SparseCall&)> kDifferences = {
    {"fewer elements", [](sparse::SparseCall& c) { c.d -= 1; }},
    {"twice the elements", [](sparse::SparseCall& c) { c.d *= 2; }},
    {"smaller k", [](sparse::SparseCall& c) { c.options.k = 3; }},
    {"larger k", [](sparse::SparseCall& c) { c.options.k = 50; }},
    {"float64", [](sparse::SparseCall& c) { c.dtype = DataType::kFloat64; }},
    {"bfloat16", [](sparse::SparseCall& c) { c.dtype = DataType::kBfloat16; }},
    {"AVG", [](sparse::SparseCall& c) { c.options.op = ReduceOp::kAvg; }},
    {"merged", [](sparse::SparseCall& c) { c.options.put_back = PutBack::kMerged; }},
    {"gtopk", [](sparse::SparseCall& c) { c.options.algorithm = "gtopk"; }},
    {"gtopk-tree", [](sparse::SparseCall& c) { c.options.algorithm = "gtopk-tree"; }},
    {"topk", [](sparse::SparseCall& c) { c.options.algorithm = "topk"; }},
    {"dense", [](sparse::SparseCall& c) { c.options.algorithm = "dense"; }},
    {"rs-ag", [](sparse::SparseCall& c) { c.options.algorithm = "rs-ag"; }},
    {"random-k", [](sparse::SparseCall& c) { c.options.algorithm = "random-k"; }},
    {"sketch", [](sparse::SparseCall& c) { c.options.algorithm = "sketch"; }},
    {"another seed", [](sparse::SparseCall& c) { c.options.seed = 5; }},
    {"true-topk", [](sparse::SparseCall& c) { c.options.algorithm = "true-topk"; }},
    {"exact", [](sparse::SparseCall& c) { c.options.algorithm = "exact"; }},
    {"hierarchical", [](sparse::SparseCall& c) { c.options.algorithm = "hierarchical"; }},
    {"gtopk-placed", [](sparse::SparseCall& c) { c.options.algorithm = "gtopk-placed"; }},
    {"int8", [](sparse::SparseCall& c) { c.options.wire = "int8"; }},
    {"dense, coded",
     [](sparse::SparseCall& c) {
       c.options.algorithm = "dense";
       c.options.wire = "4bit";
     }},
    {"dense by the ring",
     [](sparse::SparseCall& c) {
       c.options.algorithm = "dense";
       c.d = 20000;
     }},
};

/// All ranks failed with both descriptions in the text, nothing was written, and the group still
/// works.
void expect_mismatch(InprocRanks& ranks, const std::vector<support::SharedEnding>& endings,
                     const std::string& one, const std::string& other) {
  for (const auto& ending : endings) {
    ASSERT_TRUE(ending->ended);
    ASSERT_TRUE(ending->error.has_value());
    ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
    ASSERT_NE(ending->text().find(one), std::string::npos) << ending->text() << "\nlacks " << one;
    ASSERT_NE(ending->text().find(other), std::string::npos)
        << ending->text() << "\nlacks " << other;
    ASSERT_NE(ending->text().find("#1"), std::string::npos) << ending->text();
  }
  ASSERT_EQ(support::group_works(ranks), "");
  const auto left = ranks.close();
  ASSERT_TRUE(left.empty()) << left.front();
}

class Mismatch : public ::testing::TestWithParam<std::string> {};

TEST_P(Mismatch, AtAnyRankIsAnErrorOnEveryRankAndTheGroupWorksOn) {
  std::uint64_t seed = 0;
  for (std::uint32_t size = 2; size <= (kSanitized ? 4U : 8U); ++size) {
    for (std::uint32_t odd = 0; odd < size; ++odd) {
      for (const auto& [name, change] : kDifferences) {
        sparse::SparseCall different = usual(GetParam(), 100);
        change(different);
        const std::string one = text_of(usual(GetParam(), 100));
        const std::string other = text_of(different);
        if (one == other) {
          continue;
        }
        SCOPED_TRACE(fmt::format("P={} rank {} differs: {}, seed {}", size, odd, name, ++seed));
        InprocRanks ranks(size, network(seed));
        std::vector<Call> calls;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          calls.emplace_back(rank == odd ? different : usual(GetParam(), 100));
        }
        for (Call& call : calls) {
          call.call.tensor = call.tensor.data();
        }
        const auto endings =
            ranks.run([&](std::uint32_t rank) { return sparse::collective(calls[rank].call); });
        expect_mismatch(ranks, endings, one, other);
        for (const Call& call : calls) {
          ASSERT_TRUE(call.tensor == call.before);
        }
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

// Long lists are acknowledged, but a mismatched one is not: no rank may wait for that.
TEST_P(Mismatch, OfLongListsLeavesNothingUnderWay) {
  const std::uint64_t d = 4 * sparse::kAcknowledgedBytes;
  std::uint64_t seed = 0;
  for (std::uint32_t size = 2; size <= 6; ++size) {
    for (std::uint32_t odd = 0; odd < size; ++odd) {
      SCOPED_TRACE(fmt::format("P={} rank {} differs, seed {}", size, odd, ++seed));
      sparse::SparseCall same = usual(GetParam(), d);
      same.options.k = sparse::kAcknowledgedBytes;
      sparse::SparseCall different = same;
      different.options.put_back = PutBack::kMerged;
      InprocRanks ranks(size, network(seed));
      std::vector<Call> calls;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        calls.emplace_back(rank == odd ? different : same);
      }
      for (Call& call : calls) {
        call.call.tensor = call.tensor.data();
      }
      const auto endings =
          ranks.run([&](std::uint32_t rank) { return sparse::collective(calls[rank].call); });
      for (const auto& ending : endings) {
        ASSERT_TRUE(ending->error.has_value());
        ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
      }
      ASSERT_EQ(support::group_works(ranks), "");
      ranks.settle();
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        EXPECT_EQ(ranks.engine(rank).under_way(), 0U) << "rank " << rank;
      }
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Mismatch, ::testing::ValuesIn(reference::algorithms()));

TEST(MismatchedCollectives, OfAnyTwoKindsAreAnErrorOnEveryRank) {
  // One of each kind: its description and how a rank calls it.
  struct Kind {
    std::string text;
    std::function<engine::OperationSpec(InprocRanks&, std::uint32_t rank,
                                        std::vector<reference::Bytes>&)>
        make;
  };
  const auto one_buffer = [](std::vector<reference::Bytes>& memory,
                             std::size_t bytes) -> reference::Bytes& {
    return memory.emplace_back(bytes);
  };
  const std::vector<Kind> kinds = {
      {"barrier()", [](auto&, auto, auto&) { return gtopk::barrier(); }},
      {"all_reduce(d=10, dtype=int32, op=SUM)",
       [&](auto&, auto, auto& memory) {
         return gtopk::all_reduce(one_buffer(memory, 40).data(), 10, DataType::kInt32);
       }},
      {"all_reduce(d=40000, dtype=int32, op=SUM)",
       [&](auto&, auto, auto& memory) {
         return gtopk::all_reduce(one_buffer(memory, 160000).data(), 40000, DataType::kInt32);
       }},
      {"all_reduce(d=10, dtype=int32, op=MAX)",
       [&](auto&, auto, auto& memory) {
         return gtopk::all_reduce(one_buffer(memory, 40).data(), 10, DataType::kInt32,
                                  ReduceOp::kMax);
       }},
      {"broadcast(bytes=3000, dtype=uint8, root=0)",
       [&](auto&, auto, auto& memory) { return gtopk::broadcast(one_buffer(memory, 3000), 0); }},
      {"broadcast(bytes=3000, dtype=uint8, root=1)",
       [&](auto&, auto, auto& memory) { return gtopk::broadcast(one_buffer(memory, 3000), 1); }},
      {"broadcast(bytes=3000, dtype=float32, root=0)",
       [&](auto&, auto, auto& memory) {
         return gtopk::broadcast({one_buffer(memory, 3000), DataType::kFloat32}, 0);
       }},
      {"broadcast(bytes=3000, dtype=opaque(9), root=0)",
       [&](auto&, auto, auto& memory) {
         return gtopk::broadcast({one_buffer(memory, 3000), opaque_type(9)}, 0);
       }},
      {"all_gather(bytes=50, dtype=uint8)",
       [&](InprocRanks& ranks, auto, auto& memory) {
         std::vector<std::span<std::byte>> buffers;
         for (std::uint32_t i = 0; i < ranks.size(); ++i) {
           buffers.emplace_back(one_buffer(memory, 50));
         }
         return gtopk::all_gather(buffers);
       }},
      {"all_gather(bytes=50, dtype=bfloat16)",
       [&](InprocRanks& ranks, auto, auto& memory) {
         std::vector<std::span<std::byte>> buffers;
         for (std::uint32_t i = 0; i < ranks.size(); ++i) {
           buffers.emplace_back(one_buffer(memory, 50));
         }
         return gtopk::all_gather(Buffers(buffers, DataType::kBfloat16));
       }},
      // In as many parts as there are connections.
      {text_of(long_list()),
       [&](InprocRanks& /*ranks*/, auto /*rank*/, auto& memory) {
         sparse::SparseCall call = long_list();
         reference::Bytes& tensor = one_buffer(memory, call.d * 4);
         for (std::uint64_t i = 0; i < call.d; ++i) {
           reference::store(call.dtype, tensor, i, 1.0);
         }
         call.tensor = tensor.data();
         return sparse::collective(call);
       }},
      {text_of(usual("gtopk-tree", 100)),
       [&](InprocRanks& /*ranks*/, auto /*rank*/, auto& memory) {
         sparse::SparseCall call = usual("gtopk-tree", 100);
         reference::Bytes& tensor = one_buffer(memory, 400);
         for (std::uint64_t i = 0; i < 100; ++i) {
           reference::store(call.dtype, tensor, i, 1.0);
         }
         call.tensor = tensor.data();
         return sparse::collective(call);
       }},
  };
  std::uint64_t seed = 0;
  const std::vector<std::uint32_t> sizes{2U, 3U, 5U, 8U};
  for (const std::uint32_t size : std::span(sizes).first(kSanitized ? 2 : 4)) {
    for (std::uint32_t odd = 0; odd < size; ++odd) {
      for (std::size_t a = 0; a < kinds.size(); ++a) {
        for (std::size_t b = 0; b < kinds.size(); ++b) {
          if (a == b) {
            continue;
          }
          SCOPED_TRACE(fmt::format("P={} rank {} calls {}, others {}, seed {}", size, odd,
                                   kinds[b].text, kinds[a].text, ++seed));
          std::vector<std::vector<reference::Bytes>> memory(size);
          for (auto& buffers : memory) {
            buffers.reserve(16);
          }
          InprocRanks ranks(size, network(seed));
          const auto endings = ranks.run([&](std::uint32_t rank) {
            return kinds[rank == odd ? b : a].make(ranks, rank, memory[rank]);
          });
          expect_mismatch(ranks, endings, kinds[a].text, kinds[b].text);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// Half of the ranks against the other half: the mismatch shows only in the last round.
TEST(MismatchedHalves, AreAnErrorOnEveryRank) {
  for (const std::uint32_t size : {4U, 6U, 8U, 16U}) {
    for (const std::string& algorithm : reference::algorithms()) {
      sparse::SparseCall different = usual(algorithm, 90);
      InprocRanks ranks(size, network(size));
      std::vector<Call> calls;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        calls.emplace_back(rank < size / 2 ? usual(algorithm, 100) : different);
      }
      for (Call& call : calls) {
        call.call.tensor = call.tensor.data();
      }
      const auto endings =
          ranks.run([&](std::uint32_t rank) { return sparse::collective(calls[rank].call); });
      expect_mismatch(ranks, endings, calls.front().text, calls.back().text);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

engine::Task<void> refuse() {
  throw Error(ErrorKind::kInvalidArgument, "a mistake");
  co_return;
}

/// An error that the call's checks cannot find and the body does.
TEST(LocalMistake, IsFoundBeforeAnythingIsSentAndTheOthersAreTold) {
  for (const std::uint32_t size : {1U, 2U, 5U}) {
    for (std::uint32_t mistaken = 0; mistaken < size; ++mistaken) {
      for (const bool in_a_coroutine : {false, true}) {
        InprocRanks ranks(size, network(mistaken));
        std::vector<Call> calls(size, Call(usual("gtopk", 100)));
        for (Call& call : calls) {
          call.call.tensor = call.tensor.data();
        }
        const auto endings = ranks.run([&](std::uint32_t rank) {
          Collective call = sparse::collective(calls[rank].call);
          if (rank == mistaken) {
            call.body = [=](engine::GroupView&) -> engine::Task<void> {
              if (in_a_coroutine) {
                return refuse();
              }
              throw Error(ErrorKind::kInvalidArgument, "a mistake");
            };
          }
          return call;
        });
        const auto& sent = ranks.fabric().counters(mistaken).of(transport::TagKind::kCollective);
        EXPECT_EQ(sent.messages_sent, 0U);
        for (const auto& ending : endings) {
          ASSERT_TRUE(ending->error.has_value());
          EXPECT_EQ(ending->error->kind(), ErrorKind::kInvalidArgument) << ending->text();
          EXPECT_NE(ending->text().find(fmt::format("on rank {}", mistaken)), std::string::npos)
              << ending->text();
        }
        EXPECT_EQ(support::group_works(ranks), "");
        EXPECT_TRUE(ranks.close().empty());
      }
    }
  }
}

// Ranks 0 and 1 have failed long before rank 2 calls; it fails at once, and no rank waits for it.
TEST(AbortNotice, ThatCameBeforeTheCallFailsTheCall) {
  for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
    InprocRanks ranks(3, network(seed));
    std::vector<Call> calls(3, Call(usual("gtopk", 100)));
    calls[1] = Call(usual("gtopk", 200));
    for (Call& call : calls) {
      call.call.tensor = call.tensor.data();
    }
    std::vector<support::SharedEnding> endings;
    for (const std::uint32_t rank : {0U, 1U}) {
      endings.push_back(ranks.submit(rank, sparse::collective(calls[rank].call)));
    }
    ranks.run_for(
        std::chrono::seconds(20));  // longer than a failed operation's messages are remembered
    ASSERT_TRUE(endings[0]->error && endings[1]->error);
    EXPECT_EQ(ranks.engine(0).under_way() + ranks.engine(1).under_way(), 0U);
    endings.push_back(ranks.submit(2, sparse::collective(calls[2].call)));
    ranks.run_all();
    expect_mismatch(ranks, endings, "d=100", "d=200");
  }
}

}  // namespace
}  // namespace gtopk
