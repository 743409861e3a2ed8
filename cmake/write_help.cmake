# cmake -DPROGRAM=... -DEMULATOR=... -DOUTPUTS=man1/multihead-view.1;bash/multihead;... -P write_help.cmake
# Write the output of `multihead help` to files; their names select the help.
foreach(output ${OUTPUTS})
  if(output MATCHES "/multihead(-([a-z]+))?\\.1$")
    set(arguments ${CMAKE_MATCH_2} --format man)
  else()
    string(REGEX MATCH "([a-z]+)/[^/]+$" _ ${output})
    set(arguments --format ${CMAKE_MATCH_1})
  endif()
  get_filename_component(folder ${output} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${EMULATOR} ${PROGRAM} help ${arguments} OUTPUT_FILE ${output}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
