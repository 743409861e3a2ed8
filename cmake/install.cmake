# `cmake --install`: libraries, headers, the program, man pages, completions, docs, and the files of
# find_package(multihead) and pkg-config. All paths are relative, so an installed tree can be moved. packages.cmake
# turns each component into a package:
#
#   library model_library render_library show_library circuits_library mpi_library   the shared libraries
#   development                            headers, files for linking, manual of the headers
#   program                                the program, its manual, completions
#   documentation                          docs, examples
#   python_system                          the Python package beside them, in MHA_PYTHON_DIR if set
include(CMakePackageConfigHelpers)
set(MHA_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Completions of zsh")
set(MHA_PYTHON_DIR "" CACHE STRING "Python package: a folder below the prefix, e.g. lib/python3/dist-packages")
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pkgconfig_to_prefix /prefix/${pkgconfig_dir} /prefix)

# The target `installed` builds all installed files.
add_custom_target(installed)
include(cmake/manual.cmake)
add_dependencies(installed manual)

# One library with its .pc file.
function(mha_install name component description requires requires_private)
  string(REPLACE "_" "-" output ${name})
  set_target_properties(${name}_shared PROPERTIES EXPORT_NAME ${name})
  add_dependencies(installed ${name}_static ${name}_shared)
  install(TARGETS ${name}_static ${name}_shared EXPORT multihead
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
      NAMELINK_COMPONENT development)
  if(requires AND NOT SKBUILD) # search path of the loader
    install(CODE "file(RPATH_REMOVE FILE
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:${name}_shared>\")"
      COMPONENT ${component})
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/library.pc.in ${CMAKE_BINARY_DIR}/${output}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${output}.pc DESTINATION ${pkgconfig_dir}
    COMPONENT development)
endfunction()

mha_install(multihead library "Multi-head attention in C" "" "")
set(headers_left_out)
if(MHA_MODEL)
  set(model_needs "jansson, libutf8proc, libpcre2-8")
  if(PNG_FOUND)
    string(APPEND model_needs ", libpng")
  endif()
  if(JPEG_FOUND)
    string(APPEND model_needs ", libjpeg")
  endif()
  mha_install(multihead_model model_library
    "Model folders for multihead: safetensors, GGUF, tokenizers" "multihead"
    "${model_needs}")
else()
  list(APPEND headers_left_out checkpoint gguf image io model state question study tokenizer trial)
endif()
if(MHA_RENDER)
  mha_install(multihead_render render_library
    "Pictures of matrices for multihead: SVG, PNG, PDF, HTML, terminal" "multihead"
    "cairo-ft, cairo-pdf, libpng, zlib, freetype2")
else()
  list(APPEND headers_left_out render render_live)
endif()
if(TARGET multihead_show_shared)
  mha_install(multihead_show show_library "Figures and reports of heads for multihead"
    "multihead-model, multihead-render" "jansson")
else()
  list(APPEND headers_left_out live show)
endif()
if(MHA_CIRCUITS)
  mha_install(multihead_circuits circuits_library
    "Circuits of the heads of transformers for multihead" "multihead" "lapacke")
else()
  list(APPEND headers_left_out circuits)
endif()
if(MHA_MPI)
  mha_install(multihead_mpi mpi_library "Ranks of MPI for multihead" "multihead" "")
else()
  list(APPEND headers_left_out mpi)
endif()
list(JOIN headers_left_out "|" headers_left_out)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/multihead
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h"
  REGEX "/multihead/(${headers_left_out})\\.h$" EXCLUDE)
if(Python3_FOUND)
  install(DIRECTORY ${library_pages} DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT development)
endif()
if(TARGET multihead_program)
  add_dependencies(installed multihead_program)
  install(TARGETS multihead_program DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  # The WebAssembly that `multihead page` writes into its pages, if script/page built it.
  set(page_module ${PROJECT_SOURCE_DIR}/build/page/explorer.wasm.gz
    ${PROJECT_SOURCE_DIR}/build/page/explorer.copyright.gz)
  # OPTIONAL would create an empty folder.
  list(GET page_module 0 module)
  list(GET page_module 1 licences)
  install(CODE "if(EXISTS \"${module}\")
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/multihead\" TYPE FILE OPTIONAL
      FILES \"${module}\" \"${licences}\")
  endif()" COMPONENT program)
  install(FILES ${program_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES ${completions}/bash/multihead COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${completions}/zsh/_multihead DESTINATION ${MHA_ZSH_DIR} COMPONENT program)
  install(FILES ${completions}/fish/multihead.fish COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

# The documents that the headers cite, under the cited names.
install(FILES README.md CHANGELOG.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT documentation)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT licence)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documentation)

if(MHA_PYTHON_DIR)
  install(DIRECTORY bindings/python/multihead DESTINATION ${MHA_PYTHON_DIR} COMPONENT python_system
    PATTERN __pycache__ EXCLUDE)
  install(DIRECTORY abi DESTINATION ${MHA_PYTHON_DIR}/multihead COMPONENT python_system)
endif()

install(EXPORT multihead NAMESPACE multihead:: DESTINATION ${config_dir}
  FILE multihead-targets.cmake COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/multihead-config.cmake.in
  ${CMAKE_BINARY_DIR}/multihead-config.cmake INSTALL_DESTINATION ${config_dir})
# Before 1.0, a minor version may break compatibility.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/multihead-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/multihead-config.cmake
  ${CMAKE_BINARY_DIR}/multihead-config-version.cmake DESTINATION ${config_dir}
  COMPONENT development)

# Explain how programs find the installed files, unless they are staged.
install(SCRIPT cmake/after_install.cmake COMPONENT development)

# Remove the files of this folder's last `cmake --install`.
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${CMAKE_BINARY_DIR}/install_manifest.txt
  -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
