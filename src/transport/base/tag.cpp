#include "src/transport/base/tag.hpp"

#include <fmt/format.h>

#include "src/transport/base/status.hpp"

namespace gtopk::transport {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kInProgress:
      return "in progress";
    case Status::kCancelled:
      return "cancelled";
    case Status::kTruncated:
      return "message truncated";
    case Status::kPeerFailed:
      return "peer failed";
    case Status::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string describe(Tag tag) {
  const auto field = [tag](unsigned low, unsigned bits) {
    return (tag >> low) & ((Tag{1} << bits) - 1);
  };
  const auto kind = static_cast<TagKind>(field(62, TagBits::kKind));
  const Tag group = field(50, TagBits::kGroup);
  const Tag source = field(32, TagBits::kSource);
  switch (kind) {
    case TagKind::kCollective:
      return fmt::format("collective group {} source {} sequence {} step {} chunk {}", group,
                         source, field(16, TagBits::kSequence), field(8, TagBits::kStep),
                         field(0, TagBits::kChunk));
    case TagKind::kPointToPoint:
      return fmt::format("point-to-point group {} source {} tag {}", group, source,
                         static_cast<std::int32_t>(field(0, TagBits::kUser)));
    case TagKind::kControl:
      return fmt::format("control sender {:016x}", field(0, 62));
    case TagKind::kPayload:
      return fmt::format("payload group {} source {} serial {}", group, source,
                         field(0, TagBits::kUser));
  }
  return fmt::format("tag {:016x}", tag);
}

}  // namespace gtopk::transport
