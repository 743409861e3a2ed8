# The files of the Python package besides Python: the component "python", which pyproject.toml installs, and which
# `cmake --install build --component python` copies from any build.
#
#   multihead/abi/   the lists by which Python declares the C interface
#   multihead/lib/   the shared libraries, one file each (a wheel has no links), with a relative search path
#   multihead/bin/   the program
#   multihead/share/ the library as WebAssembly for `multihead page`, if script/page built it
#   multihead/fonts/ the default font of PNG and PDF files
install(DIRECTORY abi DESTINATION multihead COMPONENT python EXCLUDE_FROM_ALL)
set(python_targets)
foreach(name multihead multihead_model multihead_render multihead_show)
  if(TARGET ${name}_shared)
    list(APPEND python_targets ${name}_shared)
    set(file $<TARGET_SONAME_FILE_NAME:${name}_shared>)
    install(FILES $<TARGET_FILE:${name}_shared> DESTINATION multihead/lib COMPONENT python
      RENAME ${file} EXCLUDE_FROM_ALL)
  endif()
endforeach()
if(TARGET multihead_program)
  list(APPEND python_targets multihead_program)
  install(PROGRAMS $<TARGET_FILE:multihead_program> DESTINATION multihead/bin COMPONENT python
    EXCLUDE_FROM_ALL)
  install(FILES ${page_module} DESTINATION multihead/share/multihead COMPONENT python
    EXCLUDE_FROM_ALL OPTIONAL)
endif()
find_file(MHA_FONT_FILE DejaVuSans.ttf PATHS /usr/share/fonts/truetype/dejavu /usr/share/fonts/TTF
  /usr/share/fonts/dejavu-sans-fonts DOC "The font that the Python package carries")
if(MHA_FONT_FILE)
  install(FILES ${MHA_FONT_FILE} DESTINATION multihead/fonts COMPONENT python EXCLUDE_FROM_ALL)
endif()
add_custom_target(python_package DEPENDS ${python_targets})
