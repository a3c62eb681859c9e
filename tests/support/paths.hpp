// Where the tests find what they run and read: known when the tests are configured.
#pragma once

namespace nobounce::test {

extern const char* const kProgram;    // the nobounce program of this build
extern const char* const kSourceDir;  // top of the source tree

}  // namespace nobounce::test
