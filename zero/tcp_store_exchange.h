// Bringing a few bytes from rank 0 to all ranks through LibTorch's TCPStore.
#pragma once
#include <functional>
#include <string>

#include "zero/rendezvous.h"

namespace zerosharp {

/// The `exchange` of connect(): rank 0's bytes become everybody's. The store is served by rank 0 at
/// MASTER_ADDR:MASTER_PORT, or by torchrun's agent where it says so (then no rank binds the port).
/// The function throws CommError naming host and port when the port is taken or nobody answers
/// within 60 s.
std::function<void(std::string& bytes)> tcp_store_exchange(const RankInfo& info);

}  // namespace zerosharp
