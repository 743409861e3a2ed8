# Turn text files into one C source of byte arrays:
#
#   cmake -DOUTPUT=assets.c -DHEADER=render/html.h "-DASSETS=style=report.css,script=a.js|b.js"
#         -P embed.cmake
#
# Each asset is a name and its files, separated by '|' and joined in that order; comment lines and indentation are
# removed from scripts and styles to make pages smaller. It becomes `const mhai_html_asset mhai_html_<name>`, declared
# in HEADER. Only CMake itself is needed.
set(text "/* Made by cmake/embed.cmake. */\n#include \"${HEADER}\"\n")
string(REPLACE "," ";" assets "${ASSETS}")
foreach(asset ${assets})
  string(REGEX MATCH "^([a-z_]+)=(.*)$" _ "${asset}")
  set(name ${CMAKE_MATCH_1})
  string(REPLACE "|" ";" files "${CMAKE_MATCH_2}")
  set(hex "")
  foreach(file ${files})
    file(READ ${file} part HEX)
    if(file MATCHES "\\.(js|css)$")
      # Remove comment lines and indentation; "0a" at odd digits is not a line break.
      string(REGEX REPLACE "(..)" "\\1 " part "${part}")
      string(REGEX REPLACE "0a (20 )+" "0a " part "${part}")
      string(REGEX REPLACE "0a 2f 2f ([1-9a-f]. |0[0-9b-f] )*" "" part "${part}")
      string(REPLACE " " "" part "${part}")
    endif()
    string(APPEND hex ${part})
  endforeach()
  if(hex STREQUAL "")
    set(hex 0a) # C has no empty arrays
  endif()
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(........................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND text "static const unsigned char ${name}_bytes[${size}] = {\n${hex}\n};\n"
    "const mhai_html_asset mhai_html_${name} = {${name}_bytes, ${size}};\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
