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
    const mha_maps texts = {.flags = maps->contrast ? MHA_MAPS_CONTRAST : 0,
                            .text = {maps->text[0], maps->text[1]},
                            .text_bytes = {maps->text_bytes[0], maps->text_bytes[1]}};
    return mha_show_texts(&texts, most, out, size);
}

cli_exit view_warn_of_idle_names(const view_options *options, const attention_maps *from)
{
    size_t bytes;
    const char *name;
    mha_maps maps;
    CLI_TRY(view_maps(options->command, from, &maps));
    for (int i = 0; i < options->hide.count; i++)
        for (const char *at = options->hide.items[i]; (name = mha_show_idle(&maps, at, &bytes));
             at = name + bytes)
            cli_warn(options->command,
                     "--hide: no token is '%.*s'; write tokens as the picture labels them",
                     (int)bytes, name);
    return CLI_OK;
}

static cli_exit make_axis(const char *command, const maps_tokens *tokens, mha_axis *axis)
{
    const char **labels, **shown;
    uint8_t *special;
    int8_t *sequence;
    CLI_TRY(ARENA_ALLOC(command, tokens->count, &labels));
    CLI_TRY(ARENA_ALLOC(command, tokens->count, &shown));
    CLI_TRY(ARENA_ALLOC(command, tokens->count, &special));
    CLI_TRY(ARENA_ALLOC(command, tokens->count, &sequence));
    for (int64_t i = 0; i < tokens->count; i++) {
        const maps_token *token = &tokens->items[i];
        labels[i] = token->text;
        shown[i] = token->label;
        special[i] = token->special;
        sequence[i] = (int8_t)token->sequence;
    }
    *axis = (mha_axis){tokens->count, labels, shown, special, sequence};
    return CLI_OK;
}

cli_exit view_maps(const char *command, const attention_maps *from, mha_maps *maps)
{
    const bool same = from->rows.items == from->cols.items;
    *maps = (mha_maps){.struct_size = sizeof *maps,
                       .flags = (from->causal ? MHA_MAPS_CAUSAL : 0) | (same ? MHA_MAPS_SAME : 0) |
                                (from->contrast ? MHA_MAPS_CONTRAST : 0),
                       .name = from->name,
                       .kind = from->architecture,
                       .text = {from->text[0], from->text[1]},
                       .text_bytes = {from->text_bytes[0], from->text_bytes[1]},
                       .layers = from->layers,
                       .heads = from->heads,
                       .on = from->picks.on,
                       .cell = from->cell,
                       .layer = from->layer,
                       .twin = from->twin,
                       .queries = from->queries,
                       .keys = from->keys,
                       .channels = from->channels,
                       .score_scales = from->score_scales};
    CLI_TRY(make_axis(command, &from->rows, &maps->rows));
    maps->cols = maps->rows;
    if (!same) CLI_TRY(make_axis(command, &from->cols, &maps->cols));
    return from->cell > 1 ? make_axis(command, &from->tokens, &maps->tokens) : CLI_OK;
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
