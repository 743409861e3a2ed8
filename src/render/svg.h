/* SVG text from a measured figure. */
#ifndef MHAI_RENDER_SVG_H
#define MHAI_RENDER_SVG_H

#include "layout.h"

/* Where the drawing stands in something larger. */
typedef struct mhai_svg_frame {
    bool inside;         /* of a page or a drawing: no name spaces */
    const char *suffix;  /* of ids, which must differ within a page */
    const double *place; /* x, y, width, height to fit into; NULL: its own size */
} mhai_svg_frame;

/* frame NULL: a document of its own. */
mha_status mhai_svg_write(const mhai_layout *layout, const mhai_svg_frame *frame,
                          const mha_sink *sink);

/* The cells of the first panel alone, as one image that fills frame->place. */
mha_status mhai_svg_cells(const mhai_layout *layout, const mhai_svg_frame *frame,
                          const mha_sink *sink);

#endif
