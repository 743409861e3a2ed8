/* In a browser a report has no picture for readers without scripts, which would require libpng. */
#include "html.h"

mha_status mhai_html_make_picture(mhai_html_page *page)
{
    (void)page;
    return MHA_OK;
}
