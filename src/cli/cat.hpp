// `nobounce cat`: standard input to the network, the network to standard output.
//
// The two directions end on their own: the end of the input becomes our FIN, the far end's FIN closes
// the output, and the command ends when both have. What is wrong with one ends both.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "cli/guest_options.hpp"

namespace nobounce::cli {

struct CatOptions {
  GuestOptions guest;
  Endpoint remote;                 // client: whom to talk to
  std::optional<uint16_t> listen;  // server: the port
  bool udp = false;
  bool verbose = false;
  std::optional<std::chrono::nanoseconds> wait;  // connect and accept; UDP: silence at the end
};

Result<int> run_cat_tcp(Stack& stack, const CatOptions& options);
// Every read of the input is one datagram, every datagram is written as it came.
Result<int> run_cat_udp(Stack& stack, const CatOptions& options);

}  // namespace nobounce::cli
