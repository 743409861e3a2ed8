# `cmake --install`: libraries, headers, the program, and what find_package(multihead) and
# pkg-config need. Everything is relative to its own place, so an installed tree can be moved.
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/multihead)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pkgconfig_to_prefix /prefix/${pkgconfig_dir} /prefix)

# One library with its .pc file.
# The target `installed` makes everything that is copied.
add_custom_target(installed)
function(mha_install name description requires requires_private)
  string(REPLACE "_" "-" output ${name})
  set_target_properties(${name}_shared PROPERTIES EXPORT_NAME ${name})
  add_dependencies(installed ${name}_static ${name}_shared)
  install(TARGETS ${name}_static ${name}_shared EXPORT multihead
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/library.pc.in ${CMAKE_BINARY_DIR}/${output}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${output}.pc DESTINATION ${pkgconfig_dir})
endfunction()

mha_install(multihead "Multi-head attention in C" "" "")
set(headers_left_out)
if(MHA_MODEL)
  mha_install(multihead_model "Model folders for multihead: safetensors, GGUF, tokenizers"
    "multihead" "jansson, libutf8proc, libpcre2-8")
else()
  list(APPEND headers_left_out checkpoint gguf io model state tokenizer)
endif()
if(MHA_RENDER)
  mha_install(multihead_render "Pictures of matrices for multihead: SVG, PNG, HTML, terminal"
    "multihead" "libpng, freetype2")
else()
  list(APPEND headers_left_out render)
endif()
list(JOIN headers_left_out "|" headers_left_out)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/multihead
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  REGEX "/multihead/(${headers_left_out})\\.h$" EXCLUDE)
if(TARGET multihead_program)
  add_dependencies(installed multihead_program)
  install(TARGETS multihead_program DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(EXPORT multihead NAMESPACE multihead:: DESTINATION ${config_dir}
  FILE multihead-targets.cmake)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/multihead-config.cmake.in
  ${CMAKE_BINARY_DIR}/multihead-config.cmake INSTALL_DESTINATION ${config_dir})
# Before 1.0 a minor version may break what the one before promised.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/multihead-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/multihead-config.cmake
  ${CMAKE_BINARY_DIR}/multihead-config-version.cmake DESTINATION ${config_dir})
