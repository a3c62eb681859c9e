// SHA-256 of a stream (OpenSSL).
#pragma once

#include <memory>
#include <string>

#include "base/bytes.hpp"

struct evp_md_ctx_st;

namespace nobounce::cli {

class Sha256 {
 public:
  Sha256();
  void update(Bytes bytes);
  [[nodiscard]] std::string hex();  // ends it

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace nobounce::cli
