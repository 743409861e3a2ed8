/* Maps from a .npy file of any program, with tokens from a file. */
#include "common/arena.h"
#include "common/map_arrays.h"
#include "common/token_files.h"
#include "view/view.h"

#include <multihead/io.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Numbers --------------------------------------------------------------------------------- */

static cli_exit fill_layers(const mha_tensor *tensor, mha_maps *maps)
{
    int64_t size = maps->heads * maps->rows.count * maps->cols.count;
    for (int64_t l = 0; l < maps->layers; l++) {
        if (mha_maps_count(maps, l) == 0) continue;
        CLI_TRY(maps_add_layer(maps, l));
        for (int64_t i = 0; i < size; i++)
            maps->layer[l][i] = map_arrays_element(tensor, l * size + i);
    }
    return CLI_OK;
}

/* ---- Warnings -------------------------------------------------------------------------------- */

/* Irregular numbers: their count and the first one. */
typedef struct number_doubts {
    int64_t bad_sums, negative, not_finite;
    int64_t layer, head, row; /* place of the first irregular sum */
    double sum, least;
} number_doubts;

static void doubt_row(const float *row, int64_t count, number_doubts *doubts, bool *bad_sum,
                      double *sum)
{
    const double tolerance = 0.01; /* above the error of a sum of 1 after rounding to 8 or more
                                    * bits */
    bool any = false, finite = true;
    *sum = 0;
    for (int64_t s = 0; s < count; s++) {
        double value = row[s];
        if (!isfinite(value)) {
            doubts->not_finite++;
            finite = false;
            continue;
        }
        if (value != 0) any = true;
        if (value < 0) doubts->negative++;
        if (value < doubts->least) doubts->least = value;
        *sum += value;
    }
    /* A row of zeros is a query without visible keys. */
    *bad_sum = any && finite && fabs(*sum - 1) > tolerance;
}

static void doubt_map(const mha_maps *maps, int64_t layer, int64_t head, number_doubts *doubts)
{
    int64_t rows = maps->rows.count, cols = maps->cols.count;
    for (int64_t t = 0; t < rows; t++) {
        bool bad;
        double sum;
        doubt_row(maps->layer[layer] + (head * rows + t) * cols, cols, doubts, &bad, &sum);
        if (bad && doubts->bad_sums++ == 0) {
            doubts->layer = layer;
            doubts->head = head;
            doubts->row = t;
            doubts->sum = sum;
        }
    }
}

static void warn_of_numbers(const view_options *options, const mha_maps *maps)
{
    number_doubts doubts = {0};
    for (int64_t l = 0; l < maps->layers; l++)
        for (int64_t h = 0; h < maps->heads; h++)
            if (maps->on[l * maps->heads + h]) doubt_map(maps, l, h, &doubts);
    if (doubts.not_finite > 0)
        cli_warn("%s: %" PRId64 " values are NaN or infinite; they are marked in the picture",
                 options->attention, doubts.not_finite);
    if (doubts.negative > 0 && options->cmap != MHA_CMAP_DIVERGING) {
        cli_warn("%s: %" PRId64 " values are negative (least %.4g): not attention weights; --cmap "
                 "diverging draws both signs",
                 options->attention, doubts.negative, doubts.least);
    } else if (doubts.negative == 0 && doubts.bad_sums > 0) {
        cli_warn("%s: row %" PRId64 " of L%" PRId64 "H%" PRId64 " sums to %.4g%s (%" PRId64
                 " such rows): are these scores before the softmax? The picture shows the "
                 "unchanged numbers",
                 options->attention, doubts.row, doubts.layer, doubts.head, doubts.sum,
                 ", expected 1", doubts.bad_sums);
    }
}

/* ---- Both files ------------------------------------------------------------------------------ */

static cli_exit check_count(const char *array, const char *axis, int64_t wanted, const char *file,
                            int64_t count)
{
    if (wanted == count) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: has %" PRId64 " %s, but %s has %" PRId64 " tokens%s", array,
                    wanted, axis, file, count,
                    axis[0] == 'c' ? "; name a file for the columns with --key-tokens" : "");
}

static cli_exit read_labels(const view_options *options, const int64_t shape[4], mha_maps *maps)
{
    CLI_TRY(token_files_read(options->tokens, &maps->rows));
    CLI_TRY(check_count(options->attention, "rows", shape[2], options->tokens, maps->rows.count));
    if (!options->key_tokens) {
        maps->cols = maps->rows;
        maps->flags |= MHA_MAPS_SAME;
        return check_count(options->attention, "columns", shape[3], options->tokens,
                           maps->cols.count);
    }
    CLI_TRY(token_files_read(options->key_tokens, &maps->cols));
    /* "keys" and not "columns", because advice to name a file would not help here. */
    return check_count(options->attention, "keys", shape[3], options->key_tokens, maps->cols.count);
}

/* Check everything that the file's header and the token files determine, before reading
 * elements. */
static cli_exit read_heads(const view_options *options, const mha_tensor *tensor, mha_maps *maps)
{
    int64_t shape[4];
    maps_picks picks;
    CLI_TRY(map_arrays_shape(options->attention, tensor, shape));
    CLI_TRY(read_labels(options, shape, maps));
    CLI_TRY(maps_pick(&options->layers, &options->heads, shape[0], shape[1], &picks));
    maps->on = picks.on;
    maps->layers = shape[0];
    maps->heads = shape[1];
    return ARENA_ALLOC(shape[0], &maps->layer);
}

ARENA_RELEASE(destroy_array, mha_npy_destroy)

static cli_exit read_maps(const view_options *options, const mha_tensor *head, mha_maps *maps)
{
    mha_npy *array = NULL;
    CLI_TRY(cli_check(mha_npy_read(options->attention, &array)));
    CLI_TRY(arena_keep(array, destroy_array));
    const mha_tensor tensor = mha_npy_tensor(array);
    if (tensor.dtype != head->dtype || tensor.ndim != head->ndim ||
        memcmp(tensor.shape, head->shape, (size_t)head->ndim * sizeof *head->shape) != 0)
        return cli_fail(CLI_BAD_INPUT, "%s: changed while it was read; try again",
                        options->attention);
    CLI_TRY(fill_layers(&tensor, maps));
    arena_drop(array);
    return CLI_OK;
}

cli_exit view_array_maps(const view_options *options, mha_maps *maps)
{
    mha_tensor head;
    CLI_TRY(cli_check(mha_npy_peek(options->attention, &head)));
    CLI_TRY(read_heads(options, &head, maps));
    CLI_TRY(read_maps(options, &head, maps));
    char *name;
    CLI_TRY(maps_name_of_path(options->attention, &name));
    maps->name = name;
    warn_of_numbers(options, maps);
    return CLI_OK;
}
