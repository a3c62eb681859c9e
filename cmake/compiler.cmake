# Warnings, sanitizers and the compiler cache: one interface target that everything links.
add_library(nobounce_flags INTERFACE)
target_compile_options(nobounce_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror=return-type
  -Wnon-virtual-dtor -Woverloaded-virtual -fno-omit-frame-pointer)
target_include_directories(nobounce_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(nobounce_flags INTERFACE NOBOUNCE_VERSION="${PROJECT_VERSION}")

if(NOBOUNCE_SHARED_LOAD_HOOK)
  target_compile_definitions(nobounce_flags INTERFACE NOBOUNCE_SHARED_LOAD_HOOK=1)
endif()

if(NOBOUNCE_SANITIZE STREQUAL "address")
  target_compile_options(nobounce_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(nobounce_flags INTERFACE -fsanitize=address,undefined)
elseif(NOBOUNCE_SANITIZE STREQUAL "thread")
  target_compile_options(nobounce_flags INTERFACE -fsanitize=thread -Wno-tsan)
  target_link_options(nobounce_flags INTERFACE -fsanitize=thread)
elseif(NOT NOBOUNCE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "NOBOUNCE_SANITIZE must be empty, address or thread")
endif()

find_program(NOBOUNCE_CCACHE ccache)
if(NOBOUNCE_CCACHE)
  # Precompiled headers are cached under the conditions of ccache's manual: none of our sources uses
  # __TIME__, and macros are given on the command line, the same for all tests.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${NOBOUNCE_CCACHE})
endif()
