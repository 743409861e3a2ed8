# Run at the end of `cmake --install`: what the loader and pkg-config need to know of a prefix that is not
# the system's. Nothing for a package, which is staged below DESTDIR or by CPack.
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
