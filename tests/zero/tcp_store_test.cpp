// Bytes from rank 0 to all over LibTorch's TCPStore, as the ranks of a GPU run exchange NCCL's id.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "kernels/error.h"
#include "zero/tcp_store_exchange.h"

namespace zerosharp {
namespace {

using namespace std::chrono_literals;

/// As long as NCCL's id, with every byte value that a text would not hold.
std::string payload(int seed) {
  std::string bytes(128, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + seed);
  return bytes;
}

/// A store on a port of the system's choice.
c10::intrusive_ptr<c10d::TCPStore> any_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

int free_port() { return any_store()->getPort(); }

RankInfo rank_info(int rank, int world, int port) {
  RankInfo info;
  info.rank = rank;
  info.world_size = world;
  info.master_port = port;
  return info;
}

/// What each of `world` ranks, as threads, holds after `rounds` exchanges.
std::vector<std::vector<std::string>> exchange_all(int world, int port, int rounds) {
  std::vector<std::vector<std::string>> received(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      // A client that finds nobody tries again after a second: let rank 0 listen first.
      if (rank != 0) std::this_thread::sleep_for(50ms);
      const auto exchange = tcp_store_exchange(rank_info(rank, world, port), 30s);
      for (int round = 0; round < rounds; ++round) {
        std::string bytes = rank == 0 ? payload(round) : "";
        exchange(bytes);
        received[static_cast<size_t>(rank)].push_back(bytes);
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  return received;
}

std::string comm_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

/// torchrun's variables for the duration of a test.
class AgentVariables {
 public:
  explicit AgentVariables(const char* restart) {
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", restart, 1);
  }
  ~AgentVariables() {
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
  }
};

TEST(TcpStoreExchange, BytesOfRankZeroReachAll) {
  for (const int world : {2, 3, 5}) {
    for (const auto& received : exchange_all(world, free_port(), 1)) {
      EXPECT_EQ(received, std::vector<std::string>{payload(0)}) << world << " ranks";
    }
  }
}

// Rank 0 takes the store with it when it leaves; nobody may still be asking. Few attempts: a store
// looks its clients up in DNS, which can take seconds on a machine without a network.
TEST(TcpStoreExchange, NobodyIsCutOffWhenRankZeroLeaves) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    for (const auto& received : exchange_all(3, free_port(), 1)) {
      ASSERT_EQ(received, std::vector<std::string>{payload(0)}) << "attempt " << attempt;
    }
  }
}

TEST(TcpStoreExchange, UnderTorchrunTheAgentServes) {
  const auto agent = any_store();  // holds the port, so a rank that binds it fails
  std::vector<std::string> expected;
  for (int round = 0; round < 5; ++round) expected.push_back(payload(round));
  const AgentVariables variables("0");
  for (const auto& received : exchange_all(3, agent->getPort(), 5)) {
    EXPECT_EQ(received, expected);  // a later exchange never sees an earlier one's bytes
  }
}

TEST(TcpStoreExchange, ARestartedGroupDoesNotReadWhatTheFirstLeft) {
  const auto agent = any_store();
  {
    const AgentVariables first("0");
    exchange_all(2, agent->getPort(), 1);
  }
  const AgentVariables second("1");
  const auto alone = tcp_store_exchange(rank_info(1, 2, agent->getPort()), 300ms);
  std::string bytes;
  EXPECT_NE(comm_error([&] { alone(bytes); }), "no CommError");
  EXPECT_EQ(bytes, "");
}

TEST(TcpStoreExchange, ATakenPortIsNamedWithTheRemedy) {
  const auto other = any_store();
  const auto exchange = tcp_store_exchange(rank_info(0, 2, other->getPort()), 2s);
  std::string bytes = payload(0);
  const std::string message = comm_error([&] { exchange(bytes); });
  const std::string address = "127.0.0.1:" + std::to_string(other->getPort());
  EXPECT_NE(message.find(address), std::string::npos) << message;
  EXPECT_NE(message.find("--master-port"), std::string::npos) << message;
}

TEST(TcpStoreExchange, RanksThatNeverComeEndItInTime) {
  const int port = free_port();
  for (const int rank : {0, 1}) {
    const auto start = std::chrono::steady_clock::now();
    const auto exchange = tcp_store_exchange(rank_info(rank, 2, port), 1s);
    std::string bytes = payload(0);
    const std::string message = comm_error([&] { exchange(bytes); });
    EXPECT_NE(message.find("rank " + std::to_string(rank) + " of 2"), std::string::npos) << message;
    EXPECT_NE(message.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  }
}

}  // namespace
}  // namespace zerosharp
