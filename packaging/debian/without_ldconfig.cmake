# CPack adds scripts that call ldconfig to packages with shared libraries. Debian's policy requires the file
# `triggers` instead. Remove the scripts and repack with dpkg-deb.
foreach(package ${CPACK_PACKAGE_FILES})
  set(root ${package}.root)
  execute_process(COMMAND dpkg-deb --raw-extract ${package} ${root} COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${root}/DEBIAN/postinst ${root}/DEBIAN/postrm)
  execute_process(COMMAND dpkg-deb --root-owner-group -Zxz --build ${root} ${package}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE_RECURSE ${root})
endforeach()
