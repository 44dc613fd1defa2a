# What `cmake --install` puts where for programs of others: the library, its public headers, a CMake
# package and a pkg-config file. The Python package is installed by GtopkTorch.cmake, the programs
# by tools/programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_target_properties(gtopk_core PROPERTIES OUTPUT_NAME gtopk EXPORT_NAME core)
set_target_properties(gtopk_public PROPERTIES EXPORT_NAME gtopk)

set(GTOPK_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/gtopk")
install(TARGETS gtopk_core gtopk_public EXPORT gtopk
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/gtopk" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development FILES_MATCHING PATTERN "*.hpp")
install(EXPORT gtopk FILE gtopk-targets.cmake NAMESPACE gtopk::
        DESTINATION "${GTOPK_PACKAGE_DIR}" COMPONENT development)

set(GTOPK_INSTALL_FILES "${PROJECT_BINARY_DIR}/install")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gtopk-config.cmake.in"
                              "${GTOPK_INSTALL_FILES}/gtopk-config.cmake"
                              INSTALL_DESTINATION "${GTOPK_PACKAGE_DIR}")
write_basic_package_version_file("${GTOPK_INSTALL_FILES}/gtopk-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH GTOPK_PREFIX_FROM_PC "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/gtopk.pc.in" "${GTOPK_INSTALL_FILES}/gtopk.pc" @ONLY)
install(FILES "${GTOPK_INSTALL_FILES}/gtopk-config.cmake"
              "${GTOPK_INSTALL_FILES}/gtopk-config-version.cmake"
        DESTINATION "${GTOPK_PACKAGE_DIR}" COMPONENT development)
install(FILES "${GTOPK_INSTALL_FILES}/gtopk.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
