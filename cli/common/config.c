/* See config.h. */
#include "common/config.h"
#include "common/likes.h"
#include "common/maps.h"
#include "common/words.h"

#include <multihead/model.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_LENGTH = 1024 };

/* ---- Published models ------------------------------------------------------------------------ */

void config_print_models(void)
{
    cli_print("%-17s %6s %6s %6s %8s %9s %7s  %s\n", "name", "layers", "width", "heads", "kv heads",
              "head size", "tokens", "source");
    const like_model *m;
    for (int i = 0; (m = likes_at(i)) != NULL; i++)
        cli_print("%-17s %6" PRId64 " %6" PRId64 " %6" PRId64 " %8" PRId64 " %9" PRId64 " %7" PRId64
                  "  %s\n",
                  m->name, m->layers, m->embed, m->heads, m->kv_heads, m->head_dim, m->length,
                  m->source);
}

static cli_exit take_like(const char *name, config *out)
{
    const like_model *m = likes_find(name);
    if (!m) {
        const char *near = likes_nearest(name);
        return near
                   ? cli_fail(CLI_USAGE, "--like %s: no such model; did you mean '%s'?", name, near)
                   : cli_fail(CLI_USAGE, "--like %s: no such model; '--like list' shows all models",
                              name);
    }
    snprintf(out->name, sizeof out->name, "%s", m->name);
    out->source = m->source;
    out->note = m->note;
    out->published = m->published;
    out->causal = m->causal;
    out->encoder = m->cached == 0;
    out->shape = (counts_shape){.embed = m->embed,
                                .heads = m->heads,
                                .kv_heads = m->kv_heads,
                                .head_dim = m->head_dim,
                                .layers = m->layers,
                                .cached = m->cached,
                                .length = m->length,
                                .left = m->window - 1,
                                .qkv_bias = m->qkv_bias,
                                .out_bias = m->out_bias};
    return CLI_OK;
}

/* ---- Model folders --------------------------------------------------------------------------- */

static cli_exit take_folder(const char *folder, config *out)
{
    mha_model_shape shape = {.struct_size = sizeof shape};
    char *name;
    CLI_TRY(cli_check(mha_model_read_shape(folder, &shape)));
    CLI_TRY(maps_name_of_path(folder, &name));
    snprintf(out->name, sizeof out->name, "%s (%s)", name, shape.architecture);
    out->source = "its configuration";
    out->causal = shape.flags & MHA_MODEL_SHAPE_CAUSAL;
    out->encoder = !out->causal;
    out->shape = (counts_shape){.embed = shape.embed_dim,
                                .heads = shape.heads,
                                .kv_heads = shape.kv_heads,
                                .head_dim = shape.head_dim,
                                .layers = shape.layers,
                                .cached = out->causal ? shape.layers : 0,
                                .length = shape.max_positions,
                                .left = shape.window - 1,
                                .qkv_bias = shape.flags & MHA_MODEL_SHAPE_QKV_BIAS,
                                .out_bias = shape.flags & MHA_MODEL_SHAPE_OUT_BIAS};
    return CLI_OK;
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* Parse a number of keys at the start of text, up to the character `end`. */
static bool parse_keys(const char *text, char end, int64_t *keys, const char **rest)
{
    if (!args_whole(text, (const char[]){end, 0}, keys, rest) || **rest != end || *keys < -1 ||
        *keys > CONFIG_MOST)
        return false;
    *rest += end != 0;
    return true;
}

cli_exit config_window(const char *text, bool causal, int64_t *left, int64_t *right)
{
    const char *rest = text;
    int64_t before = 0, after = 0;
    bool pair = strchr(text, ',') != NULL;
    bool good = pair ? parse_keys(text, ',', &before, &rest) && parse_keys(rest, 0, &after, &rest)
                     : parse_keys(text, 0, &before, &rest) && before >= 1;
    if (!good)
        return cli_fail(CLI_USAGE,
                        "--window %s: expected a number of keys, such as 4096, including the "
                        "query's own; or keys before and after: 128,128 (-1: all)",
                        text);
    if (!pair && !causal)
        return cli_fail(
            CLI_USAGE,
            "--window %s: without --causal, give the keys before and after: --window %" PRId64
            ",%" PRId64,
            text, before / 2, before / 2);
    if (causal && after != 0)
        return cli_fail(CLI_USAGE,
                        "--window %s: a causal query sees no later key; use --window %" PRId64
                        ",0, or omit --causal",
                        text, before);
    *left = pair ? before : before - 1;
    *right = after;
    return CLI_OK;
}

/* ---- The configuration ----------------------------------------------------------------------- */

static void override(int64_t given, int64_t *value)
{
    if (given) *value = given;
}

static cli_exit fill_sizes(const config_options *o, counts_shape *s)
{
    int64_t heads = s->heads;
    override(o->embed, &s->embed);
    override(o->heads, &s->heads);
    override(o->layers, &s->layers);
    if (o->layers && s->cached) s->cached = s->layers;
    if (s->heads != heads && s->kv_heads == heads) s->kv_heads = s->heads;
    override(o->kv_heads, &s->kv_heads);
    bool width_changed = o->embed || o->heads;
    if (o->head_dim) s->head_dim = o->head_dim;
    if ((!s->head_dim || width_changed) && !o->head_dim) {
        if (s->embed % s->heads != 0)
            return cli_fail(CLI_USAGE,
                            "a width of %" PRId64 " cannot be divided among %" PRId64
                            " heads: %" PRId64 " / %" PRId64
                            " is not an integer; change one of them, or give --head-dim",
                            s->embed, s->heads, s->embed, s->heads);
        s->head_dim = s->embed / s->heads;
    }
    if (s->kv_heads > s->heads || s->heads % s->kv_heads != 0)
        return cli_fail(CLI_USAGE,
                        "%" PRId64 " query heads cannot share %" PRId64
                        " key/value heads evenly; --kv-heads must divide --heads",
                        s->heads, s->kv_heads);
    return CLI_OK;
}

static cli_exit take_plain(const config_options *o, config *out)
{
    if (!o->heads || !(o->embed || o->head_dim))
        return cli_fail(CLI_USAGE,
                        "%s is missing: give --embed and --heads, or --like NAME, or MODEL",
                        o->heads ? "--embed" : "--heads");
    int64_t embed = o->embed;
    if (!embed && __builtin_mul_overflow(o->heads, o->head_dim, &embed))
        return cli_fail(CLI_USAGE, "--heads times --head-dim is beyond 2^63 - 1");
    out->shape = (counts_shape){.embed = embed,
                                .heads = o->heads,
                                .kv_heads = o->heads,
                                .layers = 1,
                                .cached = 1,
                                .left = -1};
    snprintf(out->name, sizeof out->name, "width %s, %s head%s", words_count(embed).text,
             words_count(o->heads).text, words_s(o->heads));
    return CLI_OK;
}

cli_exit config_resolve(const config_options *o, config *out)
{
    *out = (config){0};
    if (o->like && o->model)
        return cli_fail(CLI_USAGE, "--like %s and MODEL '%s': give only one of them", o->like,
                        o->model);
    CLI_TRY(o->like    ? take_like(o->like, out)
            : o->model ? take_folder(o->model, out)
                       : take_plain(o, out));
    CLI_TRY(fill_sizes(o, &out->shape));
    counts_shape *s = &out->shape;
    if ((o->like || o->model) &&
        (o->embed || o->heads || o->kv_heads || o->head_dim || o->layers || o->bias)) {
        size_t used = strlen(out->name);
        snprintf(out->name + used, sizeof out->name - used, ", changed");
        out->published = 0; /* the count belongs to the unchanged model */
    }
    if (o->causal) out->causal = o->causal == 1;
    if (o->bias) s->qkv_bias = s->out_bias = o->bias == 1;
    override(o->length, &s->length);
    if (!s->length) s->length = DEFAULT_LENGTH;
    s->batch = o->batch ? o->batch : 1;
    s->element_bytes = 4;
    s->right = out->causal ? 0 : -1;
    return o->window ? config_window(o->window, out->causal, &s->left, &s->right) : CLI_OK;
}
