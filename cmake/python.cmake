# What the Python package holds besides Python: the component "python", which pyproject.toml installs.
#
#   multihead/lib/   the shared libraries, one file each (a wheel has no links), which find each other
#   multihead/bin/   the program
#
# Needs CMAKE_INSTALL_RPATH and CMAKE_BUILD_WITH_INSTALL_RPATH before targets are made (CMakeLists.txt).
set(python_targets)
foreach(name multihead multihead_model multihead_render)
  if(TARGET ${name}_shared)
    list(APPEND python_targets ${name}_shared)
    install(FILES $<TARGET_FILE:${name}_shared> DESTINATION multihead/lib COMPONENT python
      RENAME $<TARGET_SONAME_FILE_NAME:${name}_shared>)
  endif()
endforeach()
if(TARGET multihead_program)
  list(APPEND python_targets multihead_program)
  install(PROGRAMS $<TARGET_FILE:multihead_program> DESTINATION multihead/bin COMPONENT python)
endif()
add_custom_target(python_package DEPENDS ${python_targets})
