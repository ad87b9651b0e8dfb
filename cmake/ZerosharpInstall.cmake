# Installs libraries, headers and a package that find_package(zerosharp) takes up.
include(CMakePackageConfigHelpers)
get_property(zerosharp_libraries GLOBAL PROPERTY ZEROSHARP_LIBRARIES)
set(zerosharp_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/zerosharp)

install(TARGETS ${zerosharp_libraries} EXPORT zerosharpTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT zerosharpTargets NAMESPACE zerosharp:: DESTINATION ${zerosharp_package_folder})
foreach(folder kernels zero engine)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerosharp
    FILES_MATCHING PATTERN "*.h" PATTERN "cuda" EXCLUDE PATTERN "passes_impl.h" EXCLUDE)
endforeach()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/zerosharpConfig.cmake.in
  ${PROJECT_BINARY_DIR}/zerosharpConfig.cmake
  INSTALL_DESTINATION ${zerosharp_package_folder})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/zerosharpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/zerosharpConfig.cmake
  ${PROJECT_BINARY_DIR}/zerosharpConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/ZerosharpLibTorch.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake
  DESTINATION ${zerosharp_package_folder})

# Installed programs find LibTorch where it was at build time.
set_target_properties(zerosharp PROPERTIES INSTALL_RPATH "${ZEROSHARP_TORCH_RPATH}")
