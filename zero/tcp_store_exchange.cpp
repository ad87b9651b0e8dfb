#include "zero/tcp_store_exchange.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace zerosharp {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Without the stack trace that LibTorch's errors carry.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The store under the keys of exchange number `number`.
c10d::PrefixStore open_store(const RankInfo& info, std::chrono::milliseconds timeout, int number) {
  const bool agent_serves = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = info.rank == 0 && !agent_serves;
  options.numWorkers = static_cast<size_t>(info.world_size);
  options.waitWorkers = false;
  options.timeout = timeout;
  // An agent's store outlives a restarted group, which must not read what its predecessor left.
  const std::string keys = "zerosharp/restart" + variable("TORCHELASTIC_RESTART_COUNT") +
                           "/exchange" + std::to_string(number);
  return c10d::PrefixStore(keys, c10::make_intrusive<c10d::TCPStore>(info.master_addr, options));
}

/// Rank 0 leaves last, because the store may live in its process: the others ask for nothing after
/// their check-out has been answered, and the last of them lets rank 0 go.
void exchange(c10d::Store& store, const RankInfo& info, std::chrono::milliseconds timeout,
              std::string& bytes) {
  if (info.rank == 0) {
    store.set("bytes", std::vector<uint8_t>(bytes.begin(), bytes.end()));
    if (info.world_size > 1) store.wait({"all have it"}, timeout);
    return;
  }
  const std::vector<uint8_t> value = store.get("bytes");
  bytes.assign(value.begin(), value.end());
  if (store.add("have it", 1) == info.world_size - 1) store.set("all have it", "yes");
}

}  // namespace

std::function<void(std::string&)> tcp_store_exchange(const RankInfo& info,
                                                     std::chrono::milliseconds timeout) {
  return [info, timeout, number = 0](std::string& bytes) mutable {
    try {
      auto store = open_store(info, timeout, number++);
      exchange(store, info, timeout, bytes);
    } catch (const std::exception& error) {
      fail_comm("rank ", info.rank, " of ", info.world_size, ": the rendezvous at ",
                info.master_addr, ":", info.master_port, " failed within ",
                static_cast<double>(timeout.count()) / 1000.0, " s (", first_line(error.what()),
                "); have all ranks been started with this address? If the port is in use choose "
                "another with --master-port or MASTER_PORT");
    }
  };
}

}  // namespace zerosharp
