// Tests of the bootstrap: the error text of a call that must fail.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBootstrap);
    return error.what();
  }
  return "no error";
}

}  // namespace gtopk::bootstrap
