/* See picture_weights.h. */
#include "model/picture_weights.h"

#include "io/file.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Read the weight of this name, which has `rows` rows of `width` numbers and perhaps axes of 1. */
static mha_status read_table(const mhai_weights *weights, const char *name, int64_t rows,
                             int64_t width, float *to)
{
    const int64_t at = mhai_weights_find(weights, name);
    mha_tensor table = {.ndim = 2, .shape = {rows, width}}, found;
    int64_t index;
    if (at >= 0 && mhai_weights_peek(weights, at, &found) == MHA_OK && found.ndim <= 3) {
        int64_t shape[3] = {1, 1, 1}; /* axes of 1 before those of the table */
        for (int i = 0; i < found.ndim; i++) shape[3 - found.ndim + i] = found.shape[i];
        if (shape[0] == 1 && shape[1] == rows && shape[2] == width) table = found;
    }
    table.dtype = MHA_F32;
    MHA_TRY(mhai_weights_check(weights, name, &table, &index));
    mhai_elements_read(mhai_weights_elements(weights, index), 0, rows * width, to);
    return MHA_OK;
}

/* The bias of patches, which CLIP lacks, CLS and registers. */
static mha_status make_special(const mhai_weights *weights, const mhai_picture *picture,
                               const char *bias, int64_t width, float *to)
{
    const char *cls = "embeddings.cls_token";
    if (mhai_weights_find(weights, bias) >= 0) MHA_TRY(read_table(weights, bias, 1, width, to));
    if (mhai_weights_find(weights, cls) < 0) cls = "embeddings.class_embedding"; /* CLIP */
    if (picture->cls) MHA_TRY(read_table(weights, cls, 1, width, to + width));
    if (picture->registers == 0) return MHA_OK;
    return read_table(weights, "embeddings.register_tokens", picture->registers, width,
                      to + (1 + picture->cls) * width);
}

static mha_status make_positions(const mhai_weights *weights, const mhai_picture *picture,
                                 const char *name, int64_t width, float *to)
{
    const int64_t old = picture->image / picture->patch, cls = picture->cls;
    float *table = calloc((size_t)((cls + old * old) * width), sizeof *table);
    if (!table) return MHA_NO_MEMORY("model");
    const mha_status status = read_table(weights, name, cls + old * old, width, table);
    if (status == MHA_OK) {
        memcpy(to, table, (size_t)(cls * width) * sizeof *to);
        mhai_picture_interpolate(table + cls * width, old, width, picture->rows, picture->cols,
                                 picture->sizes == MHAI_ANTIALIASED, to + picture->first * width);
    }
    free(table);
    return status;
}

mha_status mhai_picture_table(const mhai_weights *weights, const mhai_family_plan *plan,
                              const mha_parameter *p, mhai_weight_form form, const char *name,
                              float **made)
{
    const int64_t width = p->shape[1];
    *made = calloc((size_t)p->count, sizeof **made);
    if (!*made) return MHA_NO_MEMORY("model");
    return form == MHAI_SPECIAL_ROWS ? make_special(weights, &plan->picture, name, width, *made)
                                     : make_positions(weights, &plan->picture, name, width, *made);
}

/* ---- interpolation --------------------------------------------------------------------------- */

/* Keys' cubic (1981) with parameter a. */
static double cubic(double x, double a)
{
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* The weights [from] with which output i of `to` reads the inputs. */
static void weights_of(int64_t i, int64_t from, int64_t to, bool antialias, double *w)
{
    const double scale = (double)from / (double)to, stretch = antialias && scale > 1 ? scale : 1;
    const double centre = ((double)i + 0.5) * scale - 0.5;
    const double a = antialias ? -0.5 : -0.75; /* as in torch */
    double sum = 0;
    memset(w, 0, (size_t)from * sizeof *w);
    for (int64_t k = (int64_t)floor(centre - 2 * stretch); k <= (int64_t)ceil(centre + 2 * stretch);
         k++) {
        if (antialias && (k < 0 || k >= from)) continue; /* weights are normalised instead */
        const int64_t at = k < 0 ? 0 : k >= from ? from - 1 : k;
        const double x = cubic(((double)k - centre) / stretch, a);
        w[at] += x;
        sum += x;
    }
    for (int64_t k = 0; k < from && antialias; k++) w[k] /= sum;
}

static bool counts(double weight)
{
    return weight < 0 || weight > 0;
}

/* Few rows have a weight. */
static void interpolate_point(const float *table, int64_t old, int64_t width, const double *down,
                              const double *right, float *to)
{
    enum { PIECE = 64 };
    for (int64_t at = 0; at < width; at += PIECE) {
        const int64_t n = width - at < PIECE ? width - at : PIECE;
        double sum[PIECE] = {0};
        for (int64_t y = 0; y < old; y++)
            for (int64_t x = 0; x < old && counts(down[y]); x++) {
                const double w = down[y] * right[x];
                const float *row = table + (y * old + x) * width + at;
                for (int64_t e = 0; e < n && counts(w); e++) sum[e] += w * (double)row[e];
            }
        for (int64_t e = 0; e < n; e++) to[at + e] = (float)sum[e];
    }
}

void mhai_picture_interpolate(const float *table, int64_t old, int64_t width, int64_t rows,
                              int64_t cols, bool antialias, float *to)
{
    double down[1024], right[1024]; /* read_grid() bounds `old` */
    if (rows == old && cols == old) {
        memcpy(to, table, (size_t)(old * old * width) * sizeof *to);
        return;
    }
    for (int64_t y = 0; y < rows; y++) {
        weights_of(y, old, rows, antialias, down);
        for (int64_t x = 0; x < cols; x++) {
            weights_of(x, old, cols, antialias, right);
            interpolate_point(table, old, width, down, right, to + (y * cols + x) * width);
        }
    }
}
