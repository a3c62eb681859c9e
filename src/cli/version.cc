
#include "cli/print.hpp"
#include "cli/program.hpp"

namespace nobounce::cli {

void define_version(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("version", "Print the version");
  command->callback([&action] {
    action = []() -> Result<int> {
      print_out("nobounce {}\n", NOBOUNCE_VERSION);
      return 0;
    };
  });
}

}  // namespace nobounce::cli
