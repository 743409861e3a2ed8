/* The options of a figure, and maps as the library draws them. */
#include "common/arena.h"
#include "view/view.h"

#include <string.h>

cli_exit view_check_range(const view_options *options, mha_range *range, double *lo, double *hi)
{
    const char *text = options->range;
    *range = MHA_RANGE_SHARED;
    if (!text || !strcmp(text, "shared")) return CLI_OK;
    if (!strcmp(text, "head")) {
        *range = MHA_RANGE_PANEL;
        return CLI_OK;
    }
    const char *rest;
    if (!args_decimal(text, ":", lo, &rest) || !*rest || !args_decimal(rest + 1, "", hi, &rest) ||
        *lo >= *hi)
        return cli_fail(CLI_USAGE,
                        "--range %s: expected shared, head or LO:HI, two numbers with LO below HI",
                        text);
    *range = MHA_RANGE_FIXED;
    return CLI_OK;
}

bool view_join_texts(const mha_maps *maps, int most, char *out, size_t size)
{
    return mha_show_texts(maps, most, out, size);
}

void view_warn_of_idle_names(const view_options *options, const mha_maps *maps)
{
    size_t bytes;
    const char *name;
    for (int i = 0; i < options->hide.count; i++)
        for (const char *at = options->hide.items[i]; (name = mha_show_idle(maps, at, &bytes));
             at = name + bytes)
            cli_warn("--hide: no token is '%.*s'; write tokens as the picture labels them",
                     (int)bytes, name);
}

ARENA_RELEASE(forget, mha_show_free)

cli_exit view_show_options(const view_options *options, mha_show_options *how)
{
    *how = (mha_show_options){.struct_size = sizeof *how,
                              .flags = (options->paper == PAPER_DARK ? MHA_SHOW_DARK : 0) |
                                       (options->renormalise ? MHA_SHOW_RENORMALISE : 0) |
                                       (options->scale > 0 ? MHA_SHOW_SCALE : 0) |
                                       (options->first_panel >= 0 ? MHA_SHOW_FIRST_PANEL : 0) |
                                       (options->first_cell ? MHA_SHOW_FIRST_CELL : 0),
                              .cmap = (mha_cmap)options->cmap,
                              .scale = (mha_scale)(options->scale > 0 ? options->scale - 1 : 0),
                              .values = (mha_values)options->values,
                              .hide = options->hide.items,
                              .hide_count = options->hide.count,
                              .first_panel = options->first_panel,
                              .first_row = options->first_row,
                              .first_col = options->first_col,
                              .cards = options->cards};
    return view_check_range(options, &how->range, &how->lo, &how->hi);
}

cli_exit view_show(const view_options *options, const mha_maps *maps, const char *remark,
                   mha_show **show)
{
    mha_show_options how;
    CLI_TRY(view_show_options(options, &how));
    how.remark = remark;
    CLI_TRY(ARENA_ALLOC(1, show));
    CLI_TRY(cli_check(mha_show_make(maps, &how, *show)));
    return arena_keep(*show, forget);
}
