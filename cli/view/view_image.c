/* Maps of an image: --image. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/progress.h"
#include "view/view.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

ARENA_RELEASE(free_show, mha_picture_show_free)

/* The token of --query; -1: CLS or the mean. */
static cli_exit find_query(const view_options *options, const mha_tokens *tokens, int64_t *query)
{
    char label[32];
    const mha_picture *p = tokens->picture;
    *query = -1;
    if (!options->query || !strcmp(options->query, "mean")) return CLI_OK;
    snprintf(label, sizeof label, "[%.20s]", options->query);
    for (int64_t i = 0; i < tokens->count; i++)
        if (!strcmp(tokens->labels[i], options->query) || !strcmp(tokens->labels[i], label)) {
            *query = i;
            return CLI_OK;
        }
    return cli_fail(
        CLI_USAGE, "--query %s: no such token; patches are 0,0 to %" PRId64 ",%" PRId64 "%s%s",
        options->query, p->rows - 1, p->cols - 1,
        p->first > p->registers ? ", before them CLS" : "", p->registers > 0 ? ", REG0 ..." : "");
}

/* Without chosen heads, the terminal has room for those of one layer. */
static cli_exit print_heads(const view_options *options, const mha_maps *maps,
                            const mha_figure *figure)
{
    mha_terminal terminal = screen_of(&options->screen);
    mha_figure few = *figure;
    few.dark = screen_dark(options->paper);
    if (options->layers.count == 0 && options->heads.count == 0) {
        const int64_t count = mha_maps_count(maps, maps->layers - 1);
        few.panels += few.panel_count - count;
        few.panel_count = count;
        mha_panel *own;
        CLI_TRY(ARENA_ALLOC(count, &own));
        for (int64_t i = 0; i < count; i++) {
            own[i] = few.panels[i];
            own[i].group = 0;
        }
        few.panels = own;
        few.group_names += few.group_count - 1;
        few.group_count = 1;
    }
    return cli_check(mha_render_terminal(&few, &terminal, &files_stdout));
}

static cli_exit make_show(const view_options *options, const text_model *model,
                          const mha_maps *maps, int64_t query, mha_picture_show **show)
{
    mha_show_options how;
    CLI_TRY(view_show_options(options, &how));
    if (options->query && !strcmp(options->query, "mean")) how.flags |= MHA_SHOW_MEAN;
    CLI_TRY(ARENA_ALLOC(1, show));
    CLI_TRY(cli_check(mha_picture_show_make(model->context, maps, &how, query, *show)));
    return arena_keep(*show, free_show);
}

static cli_exit run(const view_options *options, const text_model *model, mha_maps *maps,
                    const mha_tokens *tokens)
{
    maps_picks picks;
    CLI_TRY(text_model_pick(model, &options->layers, &options->heads, &picks));
    const mha_maps_desc desc = {.struct_size = sizeof desc, .tokens = tokens, .on = picks.on};
    maps->name = model->name;
    maps->text[0] = options->image;
    maps->text_bytes[0] = strlen(options->image);
    CLI_TRY(cli_check(mha_maps_run(model->context, model->model, &desc, maps)));
    return view_check_picks(options, maps);
}

cli_exit view_image(const view_options *options)
{
    text_model model;
    mha_tokens *tokens;
    mha_maps *maps;
    mha_picture_show *show;
    int64_t query;
    CLI_TRY(maps_new(&maps));
    CLI_TRY(text_model_open_for(options->model, options->threads, MHA_MODEL_IMAGES, &model));
    CLI_TRY(text_model_read_image(&model, options->image, &tokens));
    CLI_TRY(find_query(options, tokens, &query));
    CLI_TRY(run(options, &model, maps, tokens));
    CLI_TRY(make_show(options, &model, maps, query, &show));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    CLI_TRY(view_write_image(options, maps, show));
    if (options->terminal || !view_has_files(options))
        CLI_TRY(print_heads(options, maps, &show->figure));
    CLI_TRY(cli_finish_stdout(CLI_OK));
    if (!options->html)
        cli_note(options->quiet, "next: add -o maps.html to see where each patch attends");
    return CLI_OK;
}
