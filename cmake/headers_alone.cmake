# Every header compiles alone: one source per header that includes nothing else. The public headers
# see include/ only, as their users do. Compiled in the release build; a failure is a build failure.
if(NOT NOBOUNCE_SANITIZE STREQUAL "" OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  return()
endif()

function(nobounce_headers_alone target root)
  file(GLOB_RECURSE headers RELATIVE ${root} CONFIGURE_DEPENDS ${root}/*.hpp)
  set(sources)
  foreach(header IN LISTS headers)
    set(source ${PROJECT_BINARY_DIR}/headers_alone/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
    list(APPEND sources ${source})
  endforeach()
  add_library(${target} OBJECT ${sources})
  target_compile_options(${target} PRIVATE -g0 -O0)
endfunction()

nobounce_headers_alone(nobounce_headers_alone ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(nobounce_headers_alone PRIVATE nobounce_flags fmt::fmt)

nobounce_headers_alone(nobounce_public_headers_alone ${PROJECT_SOURCE_DIR}/include)
target_include_directories(nobounce_public_headers_alone PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(nobounce_public_headers_alone PRIVATE -Wall -Wextra -Wpedantic)
