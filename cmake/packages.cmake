# Debian packages by CPack: `cpack` in a build folder that script/packages configured (prefix /usr).
#
#   libmultihead0, libmultihead-model0, -render0, -show0, -circuits0, -mpi0   the shared libraries
#   libmultihead-dev   headers, static libraries, pkg-config, CMake, manual of the headers
#   multihead          the program
#   multihead-doc      docs and examples
#   python3-multihead  the Python package, over the shared libraries
#
# packaging/debian/finish.cmake adds changelog, copyright, compressed man pages and dates.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "multihead contributors")
set(CPACK_PACKAGE_CONTACT "${CPACK_PACKAGE_VENDOR} <multihead@users.noreply.github.com>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
  GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/finish.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/without_ldconfig.cmake)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# 1.0.0~rc1 comes before 1.0.0.
string(REGEX REPLACE "-" "~" debian_version "${MHA_VERSION}")
set(CPACK_DEBIAN_PACKAGE_VERSION ${debian_version})
# Sorts before any package of Debian itself.
set(CPACK_DEBIAN_PACKAGE_RELEASE 0upstream1)
set(CPACK_DEBIAN_PACKAGE_SOURCE multihead)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR})

set(same_version "(= ${debian_version}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(about "Multi-head attention in C: every common mask, score term and position
encoding, forward and backward; modules, transformers and caches; what each
head of a model does.")

# mha_package(component package description more [DEB_VARIABLE value]...)
set(CPACK_COMPONENTS_ALL)
macro(mha_package component package summary more)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${about}\n.\n${more}")
  set(fields ${ARGN})
  while(fields)
    list(POP_FRONT fields field value)
    set(CPACK_DEBIAN_${upper}_${field} "${value}")
  endwhile()
endmacro()

# A shared library, with the control files that dpkg reads.
macro(mha_library_package component library summary more)
  set(control ${CMAKE_BINARY_DIR}/debian/${component})
  set(package ${library}${PROJECT_VERSION_MAJOR})
  file(STRINGS abi/${library}.abi functions REGEX " function ")
  list(TRANSFORM functions REPLACE "([^ ]+) function ([a-z0-9_]+) .*" " \\2@Base \\1")
  list(JOIN functions "\n" functions)
  file(WRITE ${control}/symbols
    "${library}.so.${PROJECT_VERSION_MAJOR} ${package} #MINVER#\n* Build-Depends-Package: libmultihead-dev\n${functions}\n")
  file(WRITE ${control}/shlibs
    "${library} ${PROJECT_VERSION_MAJOR} ${package} (>= ${debian_version})\n")
  file(WRITE ${control}/triggers "activate-noawait ldconfig\n")
  mha_package(${component} ${package} "${summary}" "${more}" PACKAGE_SHLIBDEPS ON ${ARGN})
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
    ${control}/symbols ${control}/shlibs ${control}/triggers)
endmacro()

mha_library_package(library libmultihead "multi-head attention in C, shared library"
  "This package has the library that computes; it needs the C library only.")
set(libmultihead "libmultihead${PROJECT_VERSION_MAJOR} ${same_version}")
set(libraries "${libmultihead}")
set(needs)
if(MHA_MODEL)
  mha_library_package(model_library libmultihead-model "model files for multi-head attention in C"
    "This package has the library that reads and writes models: folders as of\nHugging Face, GGUF files, tokenizers, safetensors."
    PACKAGE_DEPENDS "${libmultihead}")
  string(APPEND libraries ", libmultihead-model${PROJECT_VERSION_MAJOR} ${same_version}")
  string(APPEND needs ", libjansson-dev, libutf8proc-dev, libpcre2-dev")
  if(JPEG_FOUND)
    string(APPEND needs ", libjpeg62-turbo-dev")
  endif()
  if(PNG_FOUND AND NOT MHA_RENDER)
    string(APPEND needs ", libpng-dev")
  endif()
endif()
if(MHA_RENDER)
  mha_library_package(render_library libmultihead-render "pictures for multi-head attention in C"
    "This package has the library that draws matrices: SVG, PNG, PDF, HTML,\nterminal."
    PACKAGE_DEPENDS "${libmultihead}" PACKAGE_RECOMMENDS fonts-dejavu-core)
  string(APPEND libraries ", libmultihead-render${PROJECT_VERSION_MAJOR} ${same_version}")
  string(APPEND needs ", libcairo2-dev, libpng-dev, libfreetype-dev, zlib1g-dev")
endif()
if(TARGET multihead_show_shared)
  mha_library_package(show_library libmultihead-show "reports of heads for multi-head attention in C"
    "This package has the library between models and pictures: figures, reports, and\nthe answers of a live page."
    PACKAGE_DEPENDS
    "libmultihead-model${PROJECT_VERSION_MAJOR} ${same_version}, libmultihead-render${PROJECT_VERSION_MAJOR} ${same_version}")
  string(APPEND libraries ", libmultihead-show${PROJECT_VERSION_MAJOR} ${same_version}")
endif()
if(MHA_CIRCUITS)
  mha_library_package(circuits_library libmultihead-circuits
    "circuits of heads for multi-head attention in C"
    "This package has the library that decomposes the weights of heads, by LAPACK."
    PACKAGE_DEPENDS "${libmultihead}")
  string(APPEND libraries ", libmultihead-circuits${PROJECT_VERSION_MAJOR} ${same_version}")
  string(APPEND needs ", liblapacke-dev")
endif()
if(MHA_MPI)
  mha_library_package(mpi_library libmultihead-mpi
    "several machines for multi-head attention in C"
    "This package has the library by which processes reach each other, over MPI.\nThe program loads it when mpirun or Slurm started it."
    PACKAGE_DEPENDS "${libmultihead}")
  string(APPEND libraries ", libmultihead-mpi${PROJECT_VERSION_MAJOR} ${same_version}")
  string(APPEND needs ", libopenmpi-dev")
endif()
mha_package(development libmultihead-dev "multi-head attention in C, development files"
  "This package has what a compiler needs: headers and their man pages, static\nlibraries, files of pkg-config and CMake."
  PACKAGE_SECTION libdevel PACKAGE_DEPENDS "${libraries}${needs}" PACKAGE_SUGGESTS multihead-doc)
if(TARGET multihead_program)
  mha_package(program multihead "see what the heads of multi-head attention attend to"
    "This package has the program, which draws and measures the heads of models."
    PACKAGE_SECTION science PACKAGE_SHLIBDEPS ON PACKAGE_RECOMMENDS fonts-dejavu-core
    PACKAGE_SUGGESTS "multihead-doc, libmultihead-mpi${PROJECT_VERSION_MAJOR}")
endif()
mha_package(documentation multihead-doc "multi-head attention in C, documentation"
  "This package has the documentation and the examples."
  PACKAGE_SECTION doc PACKAGE_ARCHITECTURE all)
if(MHA_PYTHON_DIR)
  mha_package(python_system python3-multihead "multi-head attention for Python"
    "This package has the Python package, which uses the shared libraries."
    PACKAGE_SECTION python PACKAGE_ARCHITECTURE all
    PACKAGE_DEPENDS "python3 (>= 3.10), python3-numpy, ${libraries}" PACKAGE_RECOMMENDS multihead)
endif()
include(CPack)
