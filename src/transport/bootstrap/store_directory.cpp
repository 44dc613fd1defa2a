// Bootstrap: a directory in a key-value store.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "gtopk/key_value_store.hpp"
#include "src/transport/base/job_key.hpp"
#include "src/transport/bootstrap/meeting.hpp"
#include "src/transport/bootstrap/prefix_store.hpp"

namespace gtopk {
namespace {

class StoreDirectory final : public Directory {
 public:
  StoreDirectory(std::shared_ptr<KeyValueStore> group, std::shared_ptr<KeyValueStore> job,
                 std::string_view secret)
      : group_(std::move(group)), job_(std::move(job)), key_(transport::JobKey::of(secret)) {}

  void publish(std::string_view name, std::string_view address) override {
    job_->set(name, key_ ? key_->seal(name, address) : address);
  }

  std::optional<std::string> lookup(std::string_view name,
                                    std::chrono::nanoseconds at_most) override {
    std::optional<std::string> found = job_->find(name, at_most);
    if (!found || !key_) {
      return found;
    }
    std::optional<std::string> address = key_->open(name, *found);
    if (!address) {
      throw Error(ErrorKind::kBootstrap,
                  fmt::format("the store's '{}' was not written by a rank with this rank's secret "
                              "(GTOPK_SECRET): a process outside of the job has replaced it",
                              name));
    }
    return address;
  }

  std::vector<std::string> meet(const Presence& self, std::chrono::nanoseconds at_most) override {
    if (group_) {
      return meeting::meet(*group_, self, at_most, key_.get());
    }
    bootstrap::PrefixStore group(*job_, fmt::format("{}/", self.group));
    return meeting::meet(group, self, at_most, key_.get());
  }

  [[nodiscard]] const void* place() const override { return job_.get(); }

 private:
  std::shared_ptr<KeyValueStore> group_;  ///< if null, each group's keys begin with its name
  std::shared_ptr<KeyValueStore> job_;
  std::shared_ptr<const transport::JobKey> key_;  ///< if null, nothing is sealed
};

void check(const std::shared_ptr<KeyValueStore>& store) {
  if (!store) {
    throw Error(ErrorKind::kInvalidArgument, "a directory needs a store: null was given");
  }
}

}  // namespace

std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> job,
                                          std::string_view secret) {
  check(job);
  return std::make_shared<StoreDirectory>(nullptr, std::move(job), secret);
}

std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> group,
                                          std::shared_ptr<KeyValueStore> job,
                                          std::string_view secret) {
  check(group);
  check(job);
  return std::make_shared<StoreDirectory>(std::move(group), std::move(job), secret);
}

}  // namespace gtopk
