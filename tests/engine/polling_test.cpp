// When a thread that waits looks for a moment before it sleeps.
#include "src/engine/polling.hpp"

#include <gtest/gtest.h>

namespace gtopk::engine {
namespace {

void look(Polling& polling, int in_time, int late) {
  for (int i = 0; i < in_time; ++i) {
    polling.looked(true);
  }
  for (int i = 0; i < late; ++i) {
    polling.looked(false);
  }
}

/// Waits without a look until one is to begin with a look again.
int rests(Polling& polling) {
  int count = 0;
  while (!polling.pays()) {
    polling.rested();
    ++count;
  }
  return count;
}

TEST(Polling, GoesOnWhileHalfOfTheLooksFindWhatTheyLookFor) {
  Polling polling;
  EXPECT_TRUE(polling.pays());
  for (int trial = 0; trial < 10; ++trial) {
    look(polling, Polling::kTrial / 2, Polling::kTrial / 2);
    EXPECT_TRUE(polling.pays());
  }
}

TEST(Polling, PausesOnceMoreThanHalfOfThemAreLate) {
  Polling polling;
  look(polling, Polling::kTrial / 2 - 1, Polling::kTrial / 2);
  EXPECT_TRUE(polling.pays()) << "before the trial is over";
  polling.looked(false);
  EXPECT_FALSE(polling.pays());
}

TEST(Polling, PausesTwiceAsLongAfterEachTrialThatFails) {
  Polling polling;
  for (int pause = Polling::kFewestRests; pause < 4 * Polling::kMostRests; pause *= 2) {
    look(polling, 0, Polling::kTrial);
    EXPECT_EQ(rests(polling), std::min(pause, Polling::kMostRests));
  }
}

TEST(Polling, ATrialThatSucceedsMakesTheNextPauseShort) {
  Polling polling;
  for (int trial = 0; trial < 5; ++trial) {
    look(polling, 0, Polling::kTrial);
    rests(polling);
  }
  look(polling, Polling::kTrial, 0);
  look(polling, 0, Polling::kTrial);
  EXPECT_EQ(rests(polling), Polling::kFewestRests);
}

TEST(Polling, LongWaitsThatSleepSeveralTimesDoNotShortenATrial) {
  Polling polling;
  for (int i = 0; i < Polling::kTrial - 1; ++i) {
    polling.looked(false);
    polling.rested();
    polling.rested();
    EXPECT_TRUE(polling.pays());
  }
}

}  // namespace
}  // namespace gtopk::engine
