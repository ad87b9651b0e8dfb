// Bringing a few bytes from rank 0 to all ranks through LibTorch's TCPStore.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "zero/rendezvous.h"

namespace zerosharp {

/// The `exchange` of connect(): rank 0's bytes become everybody's. The store is served by rank 0 at
/// MASTER_ADDR:MASTER_PORT while the exchange lasts, or by torchrun's agent where
/// TORCHELASTIC_USE_AGENT_STORE says so (then no rank binds the port). It may be called repeatedly,
/// by all ranks equally often.
///
/// The function throws CommError naming host and port when the port is taken or not everybody has
/// come within `timeout`.
std::function<void(std::string& bytes)> tcp_store_exchange(
    const RankInfo& info, std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace zerosharp
