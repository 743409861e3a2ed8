# CPack gives a package with shared libraries scripts that call ldconfig. The file `triggers` asks dpkg for
# it, as policy wants: the scripts go, and dpkg-deb packs again.
foreach(package ${CPACK_PACKAGE_FILES})
  set(root ${package}.root)
  execute_process(COMMAND dpkg-deb --raw-extract ${package} ${root} COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${root}/DEBIAN/postinst ${root}/DEBIAN/postrm)
  execute_process(COMMAND dpkg-deb --root-owner-group -Zxz --build ${root} ${package}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE_RECURSE ${root})
endforeach()
