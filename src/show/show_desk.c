/* The figure and report of a desk: the heads before W_O, the sum after it, and the term of each
 * head. */
#include "show/show.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <string.h>

enum { NAME_BYTES = 32, DETAIL_BYTES = 160, SUBTITLE_BYTES = 1200 };

static mha_status add_panel(mha_room *room, const float *values, int64_t group, const char *name,
                            const char *detail, mha_figure *figure, mha_panel *panels)
{
    char *texts[2];
    const char *const from[2] = {name, detail};
    for (int i = 0; i < 2; i++) MHA_TRY(mha_room_text(room, from[i], strlen(from[i]), &texts[i]));
    panels[figure->panel_count++] =
        (mha_panel){.values = values, .name = texts[0], .detail = texts[1], .group = group};
    return MHA_OK;
}

static mha_status add_panels(const mha_desk *d, mha_room *room, mha_figure *f)
{
    mha_panel *panels;
    char name[NAME_BYTES], detail[DETAIL_BYTES];
    MHA_TRY(MHA_ROOM_ALLOC(room, d->heads + 2, &panels));
    f->panels = panels;
    if (d->heads * d->head_dim == d->features)
        MHA_TRY(add_panel(room, d->before, 0, "before", "The heads side by side, the input of W_O.",
                          f, panels));
    MHA_TRY(add_panel(room, d->after, 0, "after",
                      "The sum of the terms of all heads and the bias of W_O.", f, panels));
    for (int64_t h = 0; h < d->heads; h++) {
        mha_format(name, sizeof name, "L%" PRId64 "H%" PRId64, d->layer, h);
        mha_format(detail, sizeof detail,
                   "Its term in each feature; %.0f %% of the length of all heads' terms, mean over "
                   "tokens.",
                   100 * mha_desk_share(d, h));
        MHA_TRY(
            add_panel(room, d->terms + h * d->tokens * d->features, 1, name, detail, f, panels));
    }
    return MHA_OK;
}

static mha_status name_features(const mha_desk *d, mha_room *room, mha_figure *f)
{
    const char **cols;
    char *numbers;
    MHA_TRY(MHA_ROOM_ALLOC(room, d->features, &cols));
    MHA_TRY(mha_room_alloc(room, d->features, NAME_BYTES, &numbers));
    for (int64_t e = 0; e < d->features; e++) {
        cols[e] = numbers + e * NAME_BYTES;
        mha_format(numbers + e * NAME_BYTES, NAME_BYTES, "%" PRId64, e);
    }
    f->col_labels = cols;
    return MHA_OK;
}

static mha_status make(const mha_desk *d, const mha_maps *source, const mha_show_options *o,
                       mha_show *show)
{
    static const char *const groups[] = {"the layer", "heads"};
    enum { FACTS = 2 };
    mha_room *room = &show->memory;
    char *subtitle, *producer;
    mha_fact *facts;
    MHA_TRY(mha_room_alloc(room, SUBTITLE_BYTES, 1, &subtitle));
    MHA_TRY(mha_room_alloc(room, NAME_BYTES, 1, &producer));
    MHA_TRY(MHA_ROOM_ALLOC(room, FACTS, &facts));
    mha_show_texts(source, 140, subtitle, SUBTITLE_BYTES);
    mha_format(producer, NAME_BYTES, "multihead %s", mha_version());
    facts[0] = (mha_fact){"model", source->name};
    facts[1] = (mha_fact){"shows", "what heads write"};
    show->figure = (mha_figure){.struct_size = sizeof show->figure,
                                .panel_size = sizeof(mha_panel),
                                .title = source->name,
                                .subtitle = subtitle,
                                .row_axis = "token",
                                .col_axis = "feature",
                                .rows = d->tokens,
                                .cols = d->features,
                                .row_labels = source->rows.labels,
                                .group_names = groups,
                                .group_count = 2,
                                .columns = 3,
                                .cmap = o->cmap == MHA_CMAP_VIRIDIS ? MHA_CMAP_DIVERGING : o->cmap,
                                .scale = o->flags & MHA_SHOW_SCALE ? o->scale : MHA_SCALE_LINEAR,
                                .range = o->range,
                                .lo = o->lo,
                                .hi = o->hi,
                                .dark = o->flags & MHA_SHOW_DARK,
                                .print_values = MHA_VALUES_NEVER,
                                .value_name = "term"};
    show->report = (mha_report){.struct_size = sizeof show->report,
                                .text = subtitle,
                                .facts = facts,
                                .fact_count = FACTS,
                                .producer = producer};
    MHA_TRY(name_features(d, room, &show->figure));
    MHA_TRY(add_panels(d, room, &show->figure));
    show->page = show->figure;
    show->page.subtitle = NULL;
    return MHA_OK;
}

mha_status mha_show_desk(const mha_desk *desk, const mha_maps *source,
                         const mha_show_options *given, mha_show *show)
{
    mha_show_options options;
    MHA_NEED("show", desk, source, show);
    *show = (mha_show){0};
    if (source->rows.count != desk->tokens)
        return mha_fail(MHA_ERR_SHAPE,
                        "show: source has %" PRId64 " rows, expected the %" PRId64
                        " tokens of the desk",
                        source->rows.count, desk->tokens);
    MHA_TRY(mhai_show_options(given, &options));
    const mha_status status = make(desk, source, &options, show);
    if (status != MHA_OK) mha_show_free(show);
    return status;
}
