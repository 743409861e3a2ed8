/* SVG text from a measured figure. */
#ifndef MHAI_RENDER_SVG_H
#define MHAI_RENDER_SVG_H

#include "layout.h"

/* in_page: for a place inside an HTML page, which needs no name spaces. */
mha_status mhai_svg_write(const mhai_layout *layout, bool in_page, const mha_sink *sink);

#endif
