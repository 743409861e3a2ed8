# The target `manual`: man pages and completions, written by the program and from the headers.
#
#   man/man1   one page per subcommand, from the table that prints --help
#   man/man3   one page per header and function (needs Python 3; left out without)
#   completions/bash, zsh, fish
#
# Their date is SOURCE_DATE_EPOCH, else the last commit's, else that of CHANGELOG.md, which `git archive` sets to the
# commit's.
set(source_date $ENV{SOURCE_DATE_EPOCH})
find_package(Git QUIET)
if(NOT source_date AND GIT_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} log -1 --format=%ct WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    OUTPUT_VARIABLE source_date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT source_date)
  file(TIMESTAMP ${PROJECT_SOURCE_DIR}/CHANGELOG.md source_date %s UTC)
endif()
set(dated ${CMAKE_COMMAND} -E env SOURCE_DATE_EPOCH=${source_date})

set(manual_outputs)
if(TARGET multihead_program)
  set(completions ${CMAKE_BINARY_DIR}/completions)
  file(READ ${PROJECT_SOURCE_DIR}/cli/common/commands.h rows)
  string(REGEX MATCHALL " X\\([a-z]+," rows "${rows}")
  list(TRANSFORM rows REPLACE " X\\(([a-z]+)," "\\1" OUTPUT_VARIABLE subcommands)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cli/common/commands.h)
  set(program_pages ${CMAKE_BINARY_DIR}/man/man1/multihead.1)
  foreach(subcommand ${subcommands})
    list(APPEND program_pages ${CMAKE_BINARY_DIR}/man/man1/multihead-${subcommand}.1)
  endforeach()
  set(program_completions ${completions}/bash/multihead ${completions}/zsh/_multihead
    ${completions}/fish/multihead.fish)
  add_custom_command(OUTPUT ${program_pages} ${program_completions}
    COMMAND ${dated} ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:multihead_program>
      "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}" "-DOUTPUTS=${program_pages};${program_completions}"
      -P ${PROJECT_SOURCE_DIR}/cmake/write_help.cmake
    DEPENDS multihead_program ${PROJECT_SOURCE_DIR}/cmake/write_help.cmake
    COMMENT "Writing man pages and completions" VERBATIM)
  list(APPEND manual_outputs ${program_pages} ${program_completions})
endif()

find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/multihead/*.h)
  set(library_pages ${CMAKE_BINARY_DIR}/man/man3)
  set(man_headers ${PROJECT_SOURCE_DIR}/tools/man_headers.py)
  add_custom_command(OUTPUT ${library_pages}/libmultihead.3
    COMMAND ${dated} ${Python3_EXECUTABLE} -B ${man_headers} ${library_pages} ${MHA_VERSION}
    DEPENDS ${headers} ${man_headers} ${PROJECT_SOURCE_DIR}/tools/site/headers.py
    COMMENT "Writing man pages of the headers" VERBATIM)
  list(APPEND manual_outputs ${library_pages}/libmultihead.3)
else()
  message(STATUS "no Python 3: the man pages of the headers are left out")
endif()
add_custom_target(manual ALL DEPENDS ${manual_outputs})
