/* Random parameters. Each number depends only on the seed and its position, not on the number of
 * threads. */
#include "transformer/transformer_parts.h"

#include "base/math.h"
#include "base/need.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

static void draw_words(uint64_t seed, int64_t place, uint32_t word[4])
{
    const uint32_t first[4] = {(uint32_t)place, (uint32_t)(place >> 32), 0x6D686131u, 0};
    memcpy(word, first, sizeof first);
    mhai_philox(word, (const uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)});
}

/* In (0, 1]. */
static double uniform(uint64_t seed, int64_t place)
{
    uint32_t word[4];
    draw_words(seed, place, word);
    return ((double)word[0] + 1) / 4294967296.0;
}

/* A standard normal number (Box and Muller 1958) from u in (0, 1] and an angle. */
static double normal(uint64_t seed, int64_t place)
{
    uint32_t word[4];
    draw_words(seed, place, word);
    double u = ((double)word[0] + 1) / 4294967296.0;
    double turn = (double)word[1] / 4294967296.0 + (double)word[2] / 18446744073709551616.0;
    return sqrt(-2 * mhai_log(u)) * mhai_cos_turns(turn);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

/* The standard deviation of matrices that write to the residual stream is divided by the square
 * root of the number of parts that do. */
static double deviation(const mha_transformer *t, const mha_transformer_init *init,
                        const mha_parameter *p)
{
    const mha_transformer_desc *d = &t->desc;
    if (p->kind == MHA_PARAMETER_EMBEDDING)
        return p->offset == t->positions ? init->position_std : init->embedding_std;
    int64_t writers = 0;
    for (int64_t i = 0; i < d->num_layers; i++)
        writers += 1 + !!(d->flags & MHA_TRANSFORMER_CROSS) + mha_transformer_feeds(d, i);
    double std = 1 / sqrt((double)p->shape[1]);
    bool writes = ends_with(p->name, "o_proj.weight") || ends_with(p->name, "down_proj.weight");
    return writes ? std / sqrt((double)writers) : std;
}

/* grade to the power of the head that owns an element; 1 if no head owns it. */
static double grade_of(const mha_transformer *t, const mha_transformer_init *init,
                       const mha_parameter *p, int64_t element)
{
    double factor = 1;
    for (int64_t h = mhai_transformer_head_of(&t->desc, p, element); h > 0; h--)
        factor *= init->head_grade;
    return factor;
}

/* Convolutions keep the variance of their input. Decays are initialised as in Mamba-2 (Dao and Gu
 * 2024): exp(A_log) is uniform in 1 .. 16, and softplus(dt_bias) is log-uniform in 0.001 .. 0.1.
 * Skip terms are 1. */
static void draw_mixer(mha_transformer *t, const mha_transformer_init *init, const mha_parameter *p)
{
    float *to = t->data + p->offset;
    const bool taps = ends_with(p->name, ".conv.weight"), rates = ends_with(p->name, ".A_log"),
               shifts = ends_with(p->name, ".dt_bias"), skips = ends_with(p->name, ".D");
    for (int64_t i = 0; (taps || rates || shifts || skips) && i < p->count; i++) {
        const double part = uniform(init->seed, p->offset + i);
        const double step = mha_exp((1 - part) * mha_log(0.001) + part * mha_log(0.1));
        to[i] = (float)(taps    ? normal(init->seed, p->offset + i) / sqrt((double)p->shape[1])
                        : rates ? mha_log(1 + 15 * part)
                        : skips ? 1
                                : step + mha_log(1 - mha_exp(-step)));
    }
}

static void draw(mha_transformer *t, const mha_transformer_init *init, const mha_parameter *p)
{
    const double std = deviation(t, init, p);
    for (int64_t i = 0; i < p->count; i++) {
        double x = std > 0 ? std * normal(init->seed, p->offset + i) : 0;
        if (p->kind == MHA_PARAMETER_MATRIX) x *= grade_of(t, init, p, i);
        t->data[p->offset + i] = (float)x;
    }
}

mha_status mha_transformer_initialise(mha_context *context, mha_transformer *t,
                                      const mha_transformer_init *init)
{
    MHA_NEED_AS("mha_transformer_initialise", "context, transformer, init", context, t, init);
    if (!t->data)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_transformer_initialise: the transformer's "
                                             "parameters are in a source, which is read-only");
    mha_transformer_init own;
    MHA_TRY(mhai_struct_copy("mha_transformer_init", &own, sizeof own, sizeof own, init));
    MHA_TRY(mhai_check_reserved("mha_transformer_init", own.reserved));
    if (own.embedding_std == 0) own.embedding_std = 1 / sqrt((double)t->desc.embed_dim);
    if (own.head_grade == 0) own.head_grade = 1;
    if (!(own.embedding_std > 0 && own.embedding_std <= 1e6) ||
        !(own.position_std >= 0 && own.position_std <= 1e6) ||
        !(own.head_grade > 0 && own.head_grade <= 1))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "embedding_std is %g, position_std %g, expected 0..1e6; head_grade is %g, "
                        "expected 0..1",
                        own.embedding_std, own.position_std, own.head_grade);
    for (int64_t i = 0; i < t->parameter_count; i++) {
        const mha_parameter *p = &t->parameters[i];
        if (p->kind == MHA_PARAMETER_MATRIX || p->kind == MHA_PARAMETER_EMBEDDING)
            draw(t, &own, p);
        else if (p->kind != MHA_PARAMETER_CONSTANT)
            for (int64_t k = 0; k < p->count; k++)
                t->data[p->offset + k] =
                    p->kind == MHA_PARAMETER_NORM && ends_with(p->name, "weight") ? 1.0f : 0.0f;
        if (p->kind == MHA_PARAMETER_BIAS) draw_mixer(t, &own, p);
    }
    return mha_transformer_update(context, t);
}
