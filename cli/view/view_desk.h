/* view --desk: the output of each head of a layer. */
#ifndef CLI_VIEW_DESK_H
#define CLI_VIEW_DESK_H

#include "view/view.h"

cli_exit view_desk(const view_options *options);

#endif
