# libmultihead-render: pictures of matrices. It does not depend on attention.
file(GLOB render_sources CONFIGURE_DEPENDS render/*.c)
if(EMSCRIPTEN) # pages only
  list(FILTER render_sources EXCLUDE REGEX "/(font|paper|png|html_picture)\\.c$")
  set(render_libraries)
else()
  list(FILTER render_sources EXCLUDE REGEX "/no_picture\\.c$")
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo-ft cairo-pdf)
  pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
  pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib) # on which libpng depends
  pkg_check_modules(FREETYPE REQUIRED IMPORTED_TARGET freetype2)
  set(render_libraries PkgConfig::CAIRO PkgConfig::PNG PkgConfig::ZLIB PkgConfig::FREETYPE)
endif()

# The report's page is plain HTML, CSS and JavaScript; the library contains it as byte arrays.
set(page ${CMAKE_CURRENT_SOURCE_DIR}/render/page)
set(page_scripts ${page}/strings.js ${page}/data.js ${page}/scale.js ${page}/paint.js ${page}/view.js
  ${page}/map.js ${page}/strip.js ${page}/lines.js ${page}/neurons.js ${page}/overview.js
  ${page}/evidence.js ${page}/player.js ${page}/curves.js ${page}/save.js ${page}/share.js
  ${page}/page.js)
set(heads_scripts ${page}/heads_data.js ${page}/heads_plots.js ${page}/heads_card.js
  ${page}/heads_table.js ${page}/heads_page.js)
file(GLOB translations CONFIGURE_DEPENDS ${page}/strings/*.js)
list(REMOVE_ITEM translations ${page}/strings/en.js)
list(JOIN translations "|" translation_list)
list(JOIN heads_scripts "|" heads_script_list)
list(JOIN page_scripts "|" page_script_list)
set(report_assets strings=${page}/strings/en.js translations=${translation_list} style=${page}/report.css
  script=${page_script_list})
set(live_assets live=tour.html|live.html live_style=live.css|diagram.css|knobs.css|generate.css
  live_script=live.js|diagram_parts.js|diagram_head.js|diagram.js|knobs.js|generate.js|plane.js|stations.js|tour.js
  server=server.html server_script=server.js explorer=explorer.html explorer_script=explorer.js)
list(TRANSFORM live_assets REPLACE "[=|]" "\\0${page}/")
list(APPEND live_assets worker=${PROJECT_SOURCE_DIR}/bindings/browser/worker.js)
list(TRANSFORM live_assets REPLACE "^[a-z_]+=" "" OUTPUT_VARIABLE live_files)
string(REPLACE "|" ";" live_files "${live_files}")
if(EMSCRIPTEN) # a page that has these itself: explorer.js adds them to reports
  list(TRANSFORM report_assets REPLACE "=.*" "=")
  list(TRANSFORM live_assets REPLACE "^(live_style|live_script|server_script|explorer_script|explorer|worker)=.*" "\\1=")
endif()
list(JOIN report_assets "," report_asset_list)
list(JOIN live_assets "," live_asset_list)
set(page_source ${CMAKE_CURRENT_BINARY_DIR}/html_assets.c)
set(page_embed ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
add_custom_command(OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${page_source} -DHEADER=render/html.h
    "-DASSETS=template=${page}/report.html,${report_asset_list},${live_asset_list},heads_template=${page}/heads.html,heads_style=${page}/heads.css,heads_script=${heads_script_list},picture_template=${page}/picture.html,picture_style=${page}/picture.css,picture_script=${page}/picture.js"
    -P ${page_embed}
  DEPENDS ${page_embed} ${page}/report.html ${page}/report.css ${page_scripts} ${live_files}
    ${page}/strings/en.js ${translations}
    ${page}/heads.html ${page}/heads.css ${heads_scripts}
    ${page}/picture.html ${page}/picture.css ${page}/picture.js
  COMMENT "Embedding the report's page" VERBATIM)

mha_library(multihead_render SOURCES ${render_sources} ${page_source}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES ${render_libraries})
if(NOT EMSCRIPTEN)
  target_compile_definitions(multihead_render_objects PRIVATE MHAI_HAVE_ZLIB)
endif()
