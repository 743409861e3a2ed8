/* view --desk: what the heads of a layer write. */
#ifndef CLI_VIEW_DESK_H
#define CLI_VIEW_DESK_H

#include "view.h"

cli_exit view_desk(const view_options *options);

/* Lines of at most `width` columns, broken at spaces. */
void view_print_lines(const char *text, int64_t width);

#endif
