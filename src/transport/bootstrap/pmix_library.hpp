// Bootstrap: the few functions of OpenPMIx that gtopk calls, from a library that is loaded when a
// launcher provides PMIx. The declarations here are the ABI common to OpenPMIx 4 and 5 (PMIx
// Standard, stable since 4.0), so gtopk neither needs PMIx's headers nor depends on the library:
// the same wheel starts with and without it. It does not know jobs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gtopk::bootstrap::pmix {

using Status = int;
inline constexpr Status kSuccess = 0;

using Rank = std::uint32_t;
inline constexpr Rank kWildcard = UINT32_MAX - 1;  ///< for keys of the whole job

struct Process {
  std::array<char, 256> job{};
  Rank rank = 0;
};

enum class Type : std::uint16_t {
  kBool = 1,
  kInt = 6,
  kUint16 = 13,
  kUint32 = 14,
  kByteObject = 27,
};

struct Bytes {
  const char* data;
  std::size_t size;
};

struct Value {
  Type type{};
  union {
    bool flag;
    int integer;
    std::uint16_t uint16;
    std::uint32_t uint32;
    Bytes bytes;
    std::array<void*, 3> largest{};  ///< as large as the standard's union: two pointers, a char
  };
};

struct Info {
  std::array<char, 512> key{};
  std::uint32_t flags = 0;
  Value value;
};

static_assert(sizeof(Process) == 260 && sizeof(Value) == 32 && sizeof(Info) == 552,
              "the layout of PMIx on 64-bit machines");

inline constexpr std::uint8_t kGlobal = 3;  ///< a value's scope: every process of the job

/// `value` belongs to the library, and is valid only during the callback.
using GetCallback = void (*)(Status status, Value* value, void* data);

/// PMIx's functions of the same names; see its documentation.
struct Library {
  Status (*init)(Process* self, const Info* infos, std::size_t count);
  Status (*finalize)(const Info* infos, std::size_t count);
  Status (*put)(std::uint8_t scope, const char* key, Value* value);
  Status (*commit)();
  Status (*get_nb)(const Process* process, const char* key, const Info* infos, std::size_t count,
                   GetCallback callback, void* data);
  const char* (*error_string)(Status status);
  const char* (*get_version)();
};

/// Loads libpmix.so.2, or the library GTOPK_PMIX_LIBRARY; it stays loaded. Throws
/// Error{kBootstrap}, which says what is missing.
[[nodiscard]] Library load();

}  // namespace gtopk::bootstrap::pmix
