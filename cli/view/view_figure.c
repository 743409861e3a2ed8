/* What the options say of a figure, and maps as the library shows them. */
#include "common/arena.h"
#include "view/view.h"
#include "view/view_roles.h"

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
        return cli_fail(CLI_USAGE, VIEW,
                        "--range %s: expected shared, head or LO:HI, two numbers with LO below HI",
                        text);
    *range = MHA_RANGE_FIXED;
    return CLI_OK;
}

bool view_join_texts(const attention_maps *maps, int most, char *out, size_t size)
{
    const mha_maps texts = view_maps(maps);
    return mha_show_texts(&texts, most, out, size);
}

void view_warn_of_idle_names(const view_options *options, const attention_maps *from)
{
    size_t bytes;
    const char *name;
    const mha_maps maps = view_maps(from);
    for (int i = 0; i < options->hide.count; i++)
        for (const char *at = options->hide.items[i]; (name = mha_show_idle(&maps, at, &bytes));
             at = name + bytes)
            cli_warn(options->command,
                     "--hide: no token is '%.*s'; write tokens as the picture labels them",
                     (int)bytes, name);
}

static mha_axis axis_of(const mha_tokens *tokens, const char *const *shown)
{
    return (mha_axis){tokens->count, tokens->labels, shown, tokens->special, tokens->sequence};
}

mha_maps view_maps(const attention_maps *from)
{
    const bool same = from->rows.labels == from->cols.labels;
    return (mha_maps){.struct_size = sizeof(mha_maps),
                      .flags = (from->causal ? MHA_MAPS_CAUSAL : 0) | (same ? MHA_MAPS_SAME : 0) |
                               (from->contrast ? MHA_MAPS_CONTRAST : 0),
                      .name = from->name,
                      .kind = from->architecture,
                      .text = {from->text[0], from->text[1]},
                      .text_bytes = {from->text_bytes[0], from->text_bytes[1]},
                      .layers = from->layers,
                      .heads = from->heads,
                      .on = from->picks.on,
                      .rows = axis_of(&from->rows, from->shown),
                      .cols = axis_of(&from->cols, from->shown),
                      .cell = from->cell,
                      .tokens = axis_of(&from->tokens, NULL),
                      .layer = from->layer,
                      .twin = from->twin,
                      .queries = from->queries,
                      .keys = from->keys,
                      .channels = from->channels,
                      .score_scales = from->score_scales};
}

static cli_exit make_roles(const view_options *options, const mha_show_role **out)
{
    const view_roles *roles = options->roles;
    mha_show_role *made;
    if (!roles || roles->layers == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(options->command, roles->layers * roles->heads, &made));
    for (int64_t i = 0; i < roles->layers * roles->heads; i++) {
        const view_role *role = &roles->items[i];
        made[i] = (mha_show_role){*role->badge ? role->badge : NULL, role->does, role->rests,
                                  role->measures, VIEW_ROLES_MEASURES};
    }
    *out = made;
    return CLI_OK;
}

ARENA_RELEASE(forget, mha_show_free)

cli_exit view_show(const view_options *options, const mha_maps *maps, const char *remark,
                   mha_show **show)
{
    mha_show_options how = {.struct_size = sizeof how,
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
                            .remark = remark};
    CLI_TRY(make_roles(options, &how.roles));
    CLI_TRY(view_check_range(options, &how.range, &how.lo, &how.hi));
    CLI_TRY(ARENA_ALLOC(options->command, 1, show));
    CLI_TRY(cli_check(options->command, mha_show_make(maps, &how, *show)));
    return arena_keep(options->command, *show, forget);
}
