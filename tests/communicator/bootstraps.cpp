// The bootstraps that the tests run over, a row each.
#include "tests/communicator/bootstraps.hpp"

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>

#include "gtopk/key_value_store.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"
#include "tests/communicator/member.hpp"
#include "tests/communicator/trial_directory.hpp"
#include "tests/standalone/file_store.hpp"
#include "tests/support/memory_store.hpp"

namespace gtopk::test {
namespace {

class InMemory final : public Bootstrap {
 public:
  std::shared_ptr<Directory> join() override { return directory_over(store_); }
  std::optional<std::size_t> entries() override { return store_->keys(); }

 private:
  std::shared_ptr<support::MemoryStore> store_ = std::make_shared<support::MemoryStore>();
};

class OverTcp final : public Bootstrap {
 public:
  std::shared_ptr<Directory> join() override {
    return directory_over(std::make_shared<bootstrap::TcpStore>(
        bootstrap::Endpoint{.host = "127.0.0.1", .port = server_.port()}, kWatchdog));
  }

 private:
  bootstrap::RendezvousServer server_{
      bootstrap::RendezvousListener(bootstrap::Endpoint{.host = "127.0.0.1", .port = 0})};
};

class InFiles final : public Bootstrap {
 public:
  InFiles() {
    std::string name = std::filesystem::temp_directory_path() / "gtopk-files-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no directory " + name);
    }
    folder_ = name;
  }
  InFiles(const InFiles&) = delete;
  InFiles& operator=(const InFiles&) = delete;
  InFiles(InFiles&&) = delete;
  InFiles& operator=(InFiles&&) = delete;
  ~InFiles() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::shared_ptr<Directory> join() override {
    return directory_over(std::make_shared<FileStore>(folder_));
  }
  std::optional<std::size_t> entries() override {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }

 private:
  std::filesystem::path folder_;
};

class WithoutAStore final : public Bootstrap {
 public:
  std::shared_ptr<Directory> join() override { return directory_; }
  std::optional<std::size_t> entries() override { return directory_->entries(); }

 private:
  std::shared_ptr<TrialDirectory> directory_ = std::make_shared<TrialDirectory>();
};

template <class Kind>
std::unique_ptr<Bootstrap> make() {
  return std::make_unique<Kind>();
}

}  // namespace

const std::vector<BootstrapKind>& bootstraps() {
  static const std::vector<BootstrapKind> kRows = {
      {.name = "Memory", .make = make<InMemory>},
      {.name = "Tcp", .make = make<OverTcp>},
      {.name = "Files", .make = make<InFiles>},
      {.name = "TrialDirectory", .make = make<WithoutAStore>},
  };
  return kRows;
}

}  // namespace gtopk::test
