# CPack runs this before packing, when the files of each package are in CPACK_TEMPORARY_DIRECTORY/COMPONENT.
# Adds the files that Debian's policy requires, and sets every date to that of the sources.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  message(FATAL_ERROR "set SOURCE_DATE_EPOCH, as script/packages does")
endif()
set(here ${CMAKE_CURRENT_LIST_DIR})
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(component ${CPACK_COMPONENTS_ALL})
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  string(TOUPPER ${component} upper)
  set(doc ${root}/usr/share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  file(MAKE_DIRECTORY ${doc})
  run(install --mode=644 ${here}/copyright ${doc}/copyright)
  file(WRITE ${doc}/changelog.Debian
"multihead (${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Release ${CPACK_DEBIAN_PACKAGE_VERSION}; CHANGELOG.md of multihead-doc has the changes.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB manual ${root}/usr/share/man/*/*)
  run(gzip -9n ${doc}/changelog.Debian)
  file(GLOB static ${root}/usr/lib/*/*.a)
  file(GLOB linked ${root}/usr/lib/*/*.so.*.* ${root}/usr/bin/*)
  if(linked)
    run(strip --strip-unneeded --remove-section=.comment --remove-section=.note ${linked})
  endif()
  if(static)
    run(strip --strip-debug --enable-deterministic-archives --remove-section=.comment
      --remove-section=.note ${static})
  endif()
  foreach(page ${manual})
    file(STRINGS ${page} first LIMIT_COUNT 1)
    if(first MATCHES "^\\.so man3/(.*)$") # a page of a header, under a function's name
      file(REMOVE ${page})
      file(CREATE_LINK ${CMAKE_MATCH_1}.gz ${page}.gz SYMBOLIC)
    else()
      run(gzip -9n ${page})
    endif()
  endforeach()
  run(chmod -R u=rwX,go=rX ${root})
  run(find ${root} -exec touch --no-dereference --date=@$ENV{SOURCE_DATE_EPOCH} {} +)
endforeach()
