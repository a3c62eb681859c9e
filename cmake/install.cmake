# `make install`: the program, both libraries, the public headers, the CMake package, pkg-config.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nobounce)

install(TARGETS nobounce_static nobounce_shared EXPORT nobounceTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_target_properties(nobounce_static PROPERTIES EXPORT_NAME nobounce_static)
set_target_properties(nobounce_shared PROPERTIES EXPORT_NAME nobounce)
if(TARGET nobounce_program)
  install(TARGETS nobounce_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/nobounce DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")

install(EXPORT nobounceTargets NAMESPACE nobounce:: DESTINATION ${package_dir})
configure_package_config_file(cmake/nobounceConfig.cmake.in nobounceConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(nobounceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nobounceConfig.cmake
              ${PROJECT_BINARY_DIR}/nobounceConfigVersion.cmake DESTINATION ${package_dir})

configure_file(cmake/nobounce.pc.in nobounce.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/nobounce.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
