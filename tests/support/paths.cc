#include "support/paths.hpp"

namespace nobounce::test {

const char* const kProgram = NOBOUNCE_PROGRAM;
const char* const kSourceDir = NOBOUNCE_SOURCE_DIR;

}  // namespace nobounce::test
