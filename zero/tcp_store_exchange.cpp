#include "zero/tcp_store_exchange.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr std::chrono::seconds kTimeout{60};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

c10::intrusive_ptr<c10d::Store> open_store(const RankInfo& info) {
  const bool agent_serves = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = info.rank == 0 && !agent_serves;
  options.numWorkers = static_cast<size_t>(info.world_size);
  options.waitWorkers = false;
  options.timeout = kTimeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  // A restarted group must not read what its predecessor left.
  return c10::make_intrusive<c10d::PrefixStore>(
      "zerosharp/" + variable("TORCHELASTIC_RESTART_COUNT"), std::move(store));
}

}  // namespace

std::function<void(std::string&)> tcp_store_exchange(const RankInfo& info) {
  return [info](std::string& bytes) {
    try {
      const auto store = open_store(info);
      if (info.rank == 0) store->set("id", std::vector<uint8_t>(bytes.begin(), bytes.end()));
      const std::vector<uint8_t> value = store->get("id");
      bytes.assign(value.begin(), value.end());
      // The server must outlive everybody's last question.
      if (store->add("done", 1) == info.world_size) store->set("all", std::vector<uint8_t>{1});
      store->wait({"all"}, kTimeout);
    } catch (const std::exception& error) {
      fail_comm("rank ", info.rank, " of ", info.world_size, ": the rendezvous at ",
                info.master_addr, ":", info.master_port, " failed (",
                std::string(error.what()).substr(0, 200),
                "); if the port is in use choose another with --master-port or MASTER_PORT");
    }
  };
}

}  // namespace zerosharp
