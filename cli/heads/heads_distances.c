/* Similarity of the heads of a layer, for 'multihead heads --clusters'. Distances are summed while
 * texts are processed; maps are not stored. */
#include "common/arena.h"
#include "heads/heads.h"

#include <multihead/head_pass.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Thresholds of redundant pairs, as head_distances.h suggests. */
static const double FARTHEST = 0.1, NEAREST = 0.9;

enum { LINE_BYTES = 1024 };

/* ---- clusters ------------------------------------------------------------------------------ */

static cli_exit make_clusters(mha_context *context, const mha_head_distances *distances, int64_t H,
                              double cut, int64_t **cluster, int64_t *clusters)
{
    double *distance;
    *clusters = 0;
    CLI_TRY(ARENA_ALLOC(H * H, &distance));
    CLI_TRY(ARENA_ALLOC(H, cluster));
    for (int64_t i = 0; i < H * H; i++)
        distance[i] = mha_head_distances_pair(distances, i / H, i % H).maps;
    if (H == 0) return CLI_OK;
    return cli_check(mha_head_clusters(context, H, distance, cut, *cluster, clusters));
}

/* ---- on the terminal ----------------------------------------------------------------------- */

static bool nearest_pair(const mha_head_distances *distances, int64_t H, int64_t *g, int64_t *h,
                         mha_head_pair *pair)
{
    bool any = false;
    for (int64_t a = 0; a < H; a++)
        for (int64_t b = a + 1; b < H; b++) {
            const mha_head_pair here = mha_head_distances_pair(distances, a, b);
            if (any && !(here.maps < pair->maps)) continue;
            any = true;
            *pair = here;
            *g = a;
            *h = b;
        }
    return any;
}

/* "0 3 7, 2 5": clusters of more than one head. */
static void list_clusters(const int64_t *cluster, int64_t H, int64_t clusters, char *line)
{
    size_t used = 0;
    snprintf(line, LINE_BYTES, "-");
    for (int64_t c = 0; c < clusters; c++) {
        int64_t members = 0, told = 0;
        for (int64_t h = 0; h < H; h++) members += cluster[h] == c;
        for (int64_t h = 0; h < H && members > 1; h++)
            if (cluster[h] == c && used + 32 < LINE_BYTES)
                used += (size_t)snprintf(line + used, LINE_BYTES - used, "%s%" PRId64,
                                         told++ ? " "
                                         : used ? ", "
                                                : "",
                                         h);
    }
}

static void print_redundant(const mha_study_found *found, int64_t width)
{
    char line[LINE_BYTES] = "redundant pairs (the same maps and outputs): ";
    const size_t begin = strlen(line);
    size_t used = begin;
    for (int64_t l = 0; l < found->layers; l++)
        for (int64_t a = 0; a < found->heads[l]; a++)
            for (int64_t b = a + 1; b < found->heads[l]; b++) {
                const mha_head_pair pair = mha_head_distances_pair(found->distances[l], a, b);
                if (!mha_head_pair_is_redundant(&pair, FARTHEST, NEAREST)) continue;
                if (used + 64 > LINE_BYTES) continue; /* --json lists all clusters */
                used += (size_t)snprintf(line + used, LINE_BYTES - used,
                                         "%sL%" PRId64 "H%" PRId64 " L%" PRId64 "H%" PRId64,
                                         used > begin ? ", " : "", l, a, l, b);
            }
    if (used == begin) snprintf(line + used, LINE_BYTES - used, "none");
    cli_print_wrapped("", line, width);
}

/* Print the nearest pair, if there is room, and the clusters. */
static cli_exit print_layer(const heads_found *found, int64_t layer, double cut, bool wide,
                            const mha_terminal *terminal)
{
    const mha_head_distances *distances = found->of.distances[layer];
    const int64_t H = found->of.heads[layer];
    int64_t *cluster, clusters, g = 0, h = 0;
    mha_head_pair pair = {0};
    char name[48], line[LINE_BYTES];
    if (H < 2 || !nearest_pair(distances, H, &g, &h, &pair)) return CLI_OK;
    CLI_TRY(make_clusters(found->model->context, distances, H, cut, &cluster, &clusters));
    int used = cli_print("%-7" PRId64, layer);
    snprintf(name, sizeof name, "%" PRId64 " %" PRId64, g, h);
    if (wide) used += cli_print("%-9s%.2f  %6.2f  %.2f  ", name, pair.maps, pair.cosine, pair.cka);
    list_clusters(cluster, H, clusters, line);
    cli_print_cut(line, terminal->columns - used, terminal->ascii);
    cli_print("\n");
    return CLI_OK;
}

cli_exit heads_print_clusters(const heads_options *options, const heads_found *found)
{
    enum { WIDE = 60 };
    const double cut = options->clusters.value;
    const mha_terminal terminal = screen_of(&options->screen);
    const bool wide = terminal.columns >= WIDE;
    cli_print("\n");
    cli_print("layer  %s", wide ? "nearest  maps  cosine   cka  " : "");
    cli_print("clusters\n");
    for (int64_t l = 0; l < found->of.layers; l++)
        CLI_TRY(print_layer(found, l, cut, wide, &terminal));
    print_redundant(&found->of, terminal.columns);
    return CLI_OK;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void put_matrix(mha_json *json, const mha_head_distances *distances, int64_t H,
                       const char *name, double (*value)(const mha_head_pair *pair))
{
    mha_json_line(json, 5);
    mha_json_array(json, name);
    for (int64_t g = 0; g < H; g++) {
        mha_json_line(json, 6);
        mha_json_array(json, NULL);
        for (int64_t h = 0; h < H; h++) {
            const mha_head_pair pair = mha_head_distances_pair(distances, g, h);
            mha_json_number(json, NULL, value(&pair));
        }
        mha_json_end(json);
    }
    mha_json_end(json);
}

static double maps_of(const mha_head_pair *pair)
{
    return pair->maps;
}

static double cosine_of(const mha_head_pair *pair)
{
    return pair->cosine;
}

static double cka_of(const mha_head_pair *pair)
{
    return pair->cka;
}

cli_exit heads_put_distances(mha_json *json, const heads_found *found, double cut)
{
    mha_json_number(json, "cut", cut);
    mha_json_array(json, "distances");
    mha_json_lines(json, 4);
    for (int64_t l = 0; l < found->of.layers; l++) {
        const mha_head_distances *distances = found->of.distances[l];
        const int64_t H = found->of.heads[l];
        int64_t *cluster, clusters;
        CLI_TRY(make_clusters(found->model->context, distances, H, cut, &cluster, &clusters));
        mha_json_object(json, NULL);
        mha_json_integer(json, "layer", l);
        mha_json_integers(json, "clusters", cluster, H);
        put_matrix(json, distances, H, "maps", maps_of);
        put_matrix(json, distances, H, "cosine", cosine_of);
        put_matrix(json, distances, H, "cka", cka_of);
        mha_json_end(json);
    }
    mha_json_end(json);
    return CLI_OK;
}
