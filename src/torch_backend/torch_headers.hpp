// Torch backend: torch's headers, which take longer to compile than everything else here. None of
// them needs Python's headers.
#pragma once

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
