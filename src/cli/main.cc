// nobounce: the program. Commands are in files of their own; here is what they have in common.
#include <sys/prctl.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>

#include "cli/print.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  nobounce backend --socket /tmp/nb.sock --net peer --ip 10.77.0.1/24\n"
    "  nobounce ping --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 10.77.0.1\n"
    "  nobounce perf --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 --client 10.77.0.1\n"
    "  nobounce stat\n"
    "\n"
    "'nobounce COMMAND --help' shows a command's options.\n";

int run(int argc, char** argv) {
  CLI::App program("User-space network stack for confidential VMs", "nobounce");
  program.require_subcommand(1);
  program.set_version_flag("--version", "nobounce " NOBOUNCE_VERSION);
  program.footer(kExamples);
  Action action;
  define_backend(program, action);
  define_perf(program, action);
  define_ping(program, action);
  define_stat(program, action);
  define_cat(program, action);
  define_demo(program, action);
  define_version(program, action);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    std::ostringstream text;
    const int status = program.exit(done, text, text);
    print_text(text.str());
    return status;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s\n", explain(program, error).c_str());
    return 2;
  }
  const std::string name = "nobounce " + program.get_subcommands().front()->get_name();
  const auto status = action();
  if (status) return *status;
  std::fprintf(stderr, "%s: %s\n", name.c_str(), status.error().to_string().c_str());
  return status.error().code == std::errc::interrupted ? stop_status() : 1;
}

// `status` stays where the command itself has failed.
int end_output(int status) {
  flush_output();
  const int error = output_error();
  if (error == 0) return status;
  // A reader that has seen enough and left (`| head`) needs no telling.
  if (status == 0 && error != EPIPE) {
    std::fprintf(stderr, "nobounce: write to standard output: %s\n", std::strerror(error));
  }
  return status != 0 ? status : 1;
}

}  // namespace
}  // namespace nobounce::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Packets and keys of this process are nobody else's to read, not even of the same user's (TM-87).
  // The sanitizers look into their own process by the way this closes.
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
  int status = 1;
  try {
    status = nobounce::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nobounce: %s\n", error.what());
  }
  return nobounce::cli::end_output(status);
}
