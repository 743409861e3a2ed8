# Run at the end of `cmake --install`: explain how the loader and pkg-config find a prefix that is not the system's.
# Prints nothing for packages, which are staged below DESTDIR or by CPack.
if(NOT DEFINED ENV{DESTDIR} AND NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND NOT CPACK_PACKAGE_NAME)
  message(STATUS "Installed in ${CMAKE_INSTALL_PREFIX}; docs/library.md has the ways to link. In short:")
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr/local")
    message(STATUS "  run ldconfig as root, so that programs find the shared libraries")
  else()
    message(STATUS "  link with -Wl,-rpath,LIBDIR (pkg-config --variable=libdir multihead), and set")
    message(STATUS "  PKG_CONFIG_PATH, CMAKE_PREFIX_PATH and MANPATH to the folders of this prefix")
  endif()
  message(STATUS "  `cmake --build BUILD --target uninstall` removes it again")
endif()
