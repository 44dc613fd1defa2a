// Transport over UCX: the class behind make_ucx_transport, private to this module.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/config.hpp"
#include "src/transport/ucx/context.hpp"
#include "src/transport/ucx/descriptor_reserve.hpp"
#include "src/transport/ucx/endpoint.hpp"
#include "src/transport/ucx/fork_mark.hpp"
#include "src/transport/ucx/neighbours.hpp"
#include "src/transport/ucx/ucx_transport.hpp"
#include "src/transport/ucx/unexpected.hpp"
#include "src/transport/ucx/worker.hpp"

namespace gtopk::transport {

/// UCX's pointer to the request: the end of the area before which it keeps its own data.
[[nodiscard]] inline void* ucx_request(Request& request) {
  return request.storage + Request::kStorage;
}

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxOptions& options);
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;
  UcxTransport(UcxTransport&&) = delete;
  UcxTransport& operator=(UcxTransport&&) = delete;
  ~UcxTransport() override;

  [[nodiscard]] const PeerInfo& self() const override { return self_; }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::string card() const override;
  PeerId add_peer(std::string_view blob) override;
  void use(AddressBook* book) override { book_ = book; }
  void set_address(PeerId peer, std::string_view blob) override;
  void no_address(PeerId peer, const std::string& reason) override;
  [[nodiscard]] std::string why_unreachable(PeerId peer) const override;
  [[nodiscard]] bool awaits_address(PeerId peer) const override {
    return endpoints_.at(peer).asked;
  }
  [[nodiscard]] const PeerInfo& peer(PeerId peer) const override;
  [[nodiscard]] bool process_ended(PeerId peer) const override;
  void send(PeerId peer, Tag tag, ConstBytes data, Request& request) override;
  void recv(PeerId peer, Tag tag, Bytes data, Request& request) override;
  [[nodiscard]] bool takes(Memory::Kind kind, PeerId peer) const override;
  [[nodiscard]] bool connected(PeerId peer) const override;
  [[nodiscard]] std::uint32_t connections(PeerId peer) const override;
  void cancel(Request& request) override;
  void give_up(PeerId peer) override;
  [[nodiscard]] bool spent() const override;
  void expect_departure(PeerId peer) override;
  [[nodiscard]] bool lies_there(Tag tag) override;
  std::size_t discard(Tag tag, Tag mask) override;
  std::size_t sift(const std::function<bool(Tag)>& ours) override;
  bool progress() override;
  void wait(Duration at_most) override;
  void rest(Duration at_most) override;
  void wake() override;
  [[nodiscard]] std::vector<PeerFailure> take_failures() override;
  void close(Duration at_most) override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] const std::string& lanes(PeerId peer) const { return endpoints_.at(peer).lanes(); }

 private:
  static void on_sent(void* ucx_request, ucs_status_t status, void* user_data);
  static void on_received(void* ucx_request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data);
  [[nodiscard]] bool connect(PeerId peer, bool for_notice);
  [[nodiscard]] bool has_descriptors(UcxEndpoint& endpoint, bool for_notice);
  [[nodiscard]] bool begin(PeerId peer, Tag tag, bool is_receive, Request& request);
  void ask_for_address(PeerId peer);
  void fail_held(UcxEndpoint& endpoint);
  void fail_waiting(UcxEndpoint& endpoint, bool notices_too);
  void check_listeners();
  void check_queue();
  [[nodiscard]] PeerFailure failure_of(PeerId peer) const;
  [[nodiscard]] bool post_send(const HeldSend& send);
  void post_held(UcxEndpoint& endpoint);
  void measure_round_trips();
  [[nodiscard]] ucp_request_param_t parameters(Request& request, Memory memory) const;
  void finish(Request& request, Status status, std::size_t length);
  [[nodiscard]] Duration nap(Duration at_most);
  void look_at_neighbours();
  void look_at_half_broken();
  void act_on_failures();
  void end(UcxEndpoint& endpoint);
  [[nodiscard]] bool tidy();
  [[nodiscard]] bool abandon_half_arrived();
  void fail_everything(const UcxEndpoint& cause);
  void check_process() const;

  [[nodiscard]] std::vector<UcxEndpoint*> in_closing_order();
  void flush_all(TimePoint deadline);
  void close_all(TimePoint deadline);
  void drop_unmatched(TimePoint deadline);

  UcxConfig config_;
  std::uint32_t connections_;  ///< number per peer reached by TCP, or kAutoConnections
  const DevicePointers device_pointers_;
  UcxContext context_;
  UcxWorker worker_;
  PeerInfo self_;
  const ForkMark process_;
  /// The key that is applied to the tags of messages to this process. It is shown only to the
  /// members of its groups; tags from any other process match no receive.
  const Tag key_;
  std::string address_;
  DescriptorReserve reserve_;
  UnexpectedMessages unexpected_;
  Neighbours neighbours_;
  PeerId killed_neighbour_ = 0;           ///< the last killed one, if the worker doubts its queue
  std::vector<PeerId> ended_neighbours_;  ///< messages that they sent are still received
  unsigned turns_ = 0;                    ///< counts calls of progress()
  bool moved_in_wait_ = false;            ///< wait() moved something; progress() reports it
  bool some_do_not_wake_ = false;         ///< whether some endpoints do not wake this process
  bool napping_ = false;                  ///< nothing has moved during the current naps
  TimePoint napping_since_{};
  bool closed_ = false;
  bool deaf_ = false;              ///< others can no longer connect, or their messages are hidden
  bool attention_ = false;         ///< an endpoint broke
  bool some_half_broken_ = false;  ///< one of several connections to a peer has ended
  bool some_unmeasured_ = false;   ///< a peer has answered; its round trip can be looked up
  bool posting_held_ = false;
  bool half_arrived_ = false;  ///< an ended endpoint has requests that UCX has not completed
  std::deque<UcxEndpoint> endpoints_;  ///< indexed by PeerId; UCX holds their memory addresses
  std::unordered_map<std::uint64_t, PeerId> known_;
  AddressBook* book_ = nullptr;
  std::vector<PeerFailure> failures_;
  std::vector<ucs_status_ptr_t> closing_;
};

}  // namespace gtopk::transport
