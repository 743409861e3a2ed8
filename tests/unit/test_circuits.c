/* Circuits of heads: handmade heads with known singular values, directions and scores; random
 * transformers, whose activations must match the decomposition; misuse. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/attribution.h>
#include <multihead/circuits.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { E = 8, D = 2, H = 4, V = 8, SQUARE = 64 };

/* ---- made by hand --------------------------------------------------------------------------- */

static float *weights_of(mha_transformer *t, int64_t layer, const char *name)
{
    mha_parameter p;
    expect_ok(mha_transformer_find(t, layer, name, &p));
    return mha_transformer_data(t) + p.offset;
}

/* One layer without norms, with tokens along the axes of the stream and weights of zero. */
static mha_transformer *make_plain(mha_context *context, mha_position_encoding positions)
{
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = V,
                                       .max_length = 16,
                                       .embed_dim = E,
                                       .num_layers = 1,
                                       .num_heads = H,
                                       .positions = positions};
    mha_transformer *t;
    expect_ok(mha_transformer_create(context, &desc, &t));
    for (int i = 0; i < V; i++) {
        weights_of(t, -1, "embed_tokens.weight")[i * E + i] = 1;
        weights_of(t, -1, "lm_head.weight")[i * E + i] = 1;
    }
    return t;
}

/* Row d of head h of a projection reads axis e. */
static void read_axis(mha_transformer *t, const char *name, int h, int d, int e, float factor)
{
    weights_of(t, 0, name)[(h * D + d) * E + e] = factor;
}

static void write_axis(mha_transformer *t, int h, int d, int e, float factor)
{
    weights_of(t, 0, "self_attn.o_proj.weight")[e * H * D + h * D + d] = factor;
}

static void near_to(double got, double wanted, double bound, const char *what)
{
    if (!(fabs(got - wanted) <= bound))
        fail_msg("%s: %.12g, expected %.12g within %.2g", what, got, wanted, bound);
}

/* A head that copies, one that inhibits, one that maps each token to the next, and one that does
 * half of each. */
static void copiers(void)
{
    mha_context *context = machines_context(2, 0);
    mha_transformer *t = make_plain(context, MHA_ENCODING_NONE);
    double copying[H], matching[H];
    const float signs[] = {1, -1, 1, 1};
    for (int h = 0; h < H; h++)
        for (int d = 0; d < D; d++) {
            read_axis(t, "self_attn.v_proj.weight", h, d, 2 * h + d, 3);
            const float sign = h == 3 && d == 1 ? -1 : signs[h];
            write_axis(t, h, d, h == 2 ? 2 * h + 1 - d : 2 * h + d, sign * 2);
            read_axis(t, "self_attn.q_proj.weight", h, d, d, 1);
            read_axis(t, "self_attn.k_proj.weight", h, d, h == 1 ? 7 - d : d, h == 2 ? -1 : 1);
        }
    const mha_circuits out = {.struct_size = sizeof out, .copying = copying, .matching = matching};
    expect_ok(mha_transformer_circuits(context, t, NULL, &out));
    near_to(copying[0], 1, 1e-14, "a copier");
    near_to(copying[1], -1, 1e-14, "an inhibitor");
    near_to(copying[2], 0, 1e-14, "two tokens exchanged: eigenvalues 1 and -1");
    near_to(copying[3], 0, 1e-14, "one copied, one lowered");
    near_to(matching[0], 1, 1e-14, "finds its own kind");
    near_to(matching[1], 0, 0, "finds other kinds: no eigenvalue but 0");
    near_to(matching[2], -1, 1e-14, "avoids its own kind");
    mha_transformer_destroy(t);
}

static void known_values(void)
{
    mha_context *context = machines_context(2, 1);
    mha_transformer *t = make_plain(context, MHA_ENCODING_NONE);
    double qk[H * D], ov[H * D];
    float queries[H * D * E], keys[H * D * E], reads[H * D * E], writes[H * D * E];
    const mha_circuits_desc desc = {.struct_size = sizeof desc, .directions = D};
    const mha_circuits out = {.struct_size = sizeof out,
                              .qk_values = qk,
                              .ov_values = ov,
                              .queries = queries,
                              .keys = keys,
                              .reads = reads,
                              .writes = writes};
    for (int d = 0; d < D; d++) { /* weights of head 1; all others are 0 */
        read_axis(t, "self_attn.q_proj.weight", 1, d, d, d ? 5 : 2);
        read_axis(t, "self_attn.k_proj.weight", 1, d, 4 + d, d ? -3 : 1);
        read_axis(t, "self_attn.v_proj.weight", 1, d, 2 + d, d ? 1 : 4);
        write_axis(t, 1, d, 6 + d, d ? 1 : -2);
    }
    expect_ok(mha_transformer_circuits(context, t, &desc, &out));
    const double wanted_qk[] = {0, 0, 15, 2, 0, 0, 0, 0}, wanted_ov[] = {0, 0, 8, 1, 0, 0, 0, 0};
    for (int i = 0; i < H * D; i++) {
        near_to(qk[i], wanted_qk[i], 1e-14, "M_QK");
        near_to(ov[i], wanted_ov[i], 1e-14, "M_OV");
    }
    /* q_0 is axis 1 and k_0 is minus axis 5; w_0 is axis 6 and r_0 is minus axis 2. */
    const struct {
        const float *vector;
        int axis;
        double value;
    } ends[] = {{queries + D * E, 1, 1},    {keys + D * E, 5, -1},    {queries + D * E + E, 0, 1},
                {keys + D * E + E, 4, 1},   {writes + D * E, 6, 1},   {reads + D * E, 2, -1},
                {writes + D * E + E, 7, 1}, {reads + D * E + E, 3, 1}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (int e = 0; e < E; e++)
            near_to((double)ends[i].vector[e], e == ends[i].axis ? ends[i].value : 0, 1e-7, "axis");
    mha_transformer_destroy(t);
}

/* Heads that write equally to several axes. The first of several elements of equal magnitude, up to
 * rounding, is positive. Head h writes to 2 + h axes from h on. */
static void equal_elements(void)
{
    mha_context *context = machines_context(2, 1);
    mha_transformer *t = make_plain(context, MHA_ENCODING_NONE);
    float reads[H * E], writes[H * E];
    const mha_circuits out = {.struct_size = sizeof out, .reads = reads, .writes = writes};
    for (int h = 0; h < H; h++) {
        read_axis(t, "self_attn.v_proj.weight", h, 0, 7, 1);
        for (int i = 0; i < 2 + h; i++) write_axis(t, h, 0, h + i, i % 2 == h % 2 ? -0.3f : 0.3f);
    }
    expect_ok(mha_transformer_circuits(context, t, NULL, &out));
    for (int h = 0; h < H; h++)
        for (int i = 0; i < 2 + h; i++) {
            const double sign = i % 2 ? -1 : 1;
            near_to((double)writes[h * E + h + i], sign / sqrt(2 + h), 1e-7, "a sign");
            near_to((double)reads[h * E + 7], h % 2 ? 1 : -1, 1e-7, "what goes with it");
        }
    mha_transformer_destroy(t);
}

/* One pair that rotates by one radian per position. Means over offsets are then sums of complex
 * numbers. */
static void known_rotation(void)
{
    mha_context *context = machines_context(1, 2);
    mha_transformer *t = make_plain(context, MHA_ENCODING_ROTARY);
    double qk[H * D], matching[H];
    const mha_circuits out = {.struct_size = sizeof out, .qk_values = qk, .matching = matching};
    for (int d = 0; d < D; d++) {
        read_axis(t, "self_attn.q_proj.weight", 0, d, d, 1);
        read_axis(t, "self_attn.k_proj.weight", 0, d, d, 1);
    }
    const int64_t offsets[][2] = {{0, 0}, {1, 1}, {3, 3}, {0, 3}, {-2, 5}, {0, 999}};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        const mha_circuits_desc desc = {.struct_size = sizeof desc,
                                        .first_offset = offsets[i][0],
                                        .last_offset = offsets[i][1]};
        double cosines = 0, sines = 0, count = 0;
        for (int64_t o = offsets[i][0]; o <= offsets[i][1]; o++, count++)
            cosines += cos((double)o), sines += sin((double)o);
        expect_ok(mha_transformer_circuits(context, t, &desc, &out));
        const double size = sqrt(cosines * cosines + sines * sines);
        near_to(qk[0], size / count, 1e-13, "turned");
        near_to(qk[1], size / count, 1e-13, "turned");
        near_to(matching[0], cosines / size, 1e-10, "eigenvalues cos +- i sin");
    }
    mha_transformer_destroy(t);
}

/* Random heads neither copy nor inhibit. For 16 x 16 numbers, the sum over sizes deviates by about
 * 1.5 / 16 from 0, and the mean of 24 heads by 0.02; the bound is 5 deviations. */
static void random_heads(void)
{
    mha_context *context = machines_context(2, 3);
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = 256,
                                       .max_length = 4,
                                       .embed_dim = 128,
                                       .num_layers = 3,
                                       .num_heads = 8,
                                       .norm = MHA_NORM_LAYER};
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = rng_run_seed()};
    mha_transformer *t;
    double copying[24], matching[24], means[2] = {0};
    const mha_circuits out = {.struct_size = sizeof out, .copying = copying, .matching = matching};
    expect_ok(mha_transformer_create(context, &desc, &t));
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_transformer_circuits(context, t, NULL, &out));
    for (int i = 0; i < 24; i++) {
        near_to(copying[i], 0, 0.6, "copying of a random head");
        near_to(matching[i], 0, 0.6, "matching of a random head");
        means[0] += copying[i] / 24, means[1] += matching[i] / 24;
    }
    near_to(means[0], 0, 0.12, "mean copying");
    near_to(means[1], 0, 0.12, "mean matching");
    mha_transformer_destroy(t);
}

/* An induction pair: L0H2 writes a token's identity into the upper half of the stream. L1H1 matches
 * its query with keys there, and raises the logit of the token that it reads. Each measure finds
 * the right head and no other. */
enum { PAIR_E = 16, PAIR_D = 4, PAIR_V = 8 };

static void set_pair(mha_transformer *t, int64_t layer, const char *name, int h, int from)
{
    for (int d = 0; d < PAIR_D; d++)
        weights_of(t, layer, name)[(h * PAIR_D + d) * PAIR_E + from + d] = 1;
}

static void set_pair_output(mha_transformer *t, int64_t layer, int h, int to)
{
    for (int d = 0; d < PAIR_D; d++)
        weights_of(t, layer, "self_attn.o_proj.weight")[(to + d) * PAIR_E + h * PAIR_D + d] = 1;
}

static mha_transformer *make_pair(mha_context *context)
{
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = PAIR_V,
                                       .max_length = 16,
                                       .embed_dim = PAIR_E,
                                       .num_layers = 2,
                                       .num_heads = 4};
    mha_transformer *t;
    expect_ok(mha_transformer_create(context, &desc, &t));
    for (int i = 0; i < PAIR_V; i++) {
        weights_of(t, -1, "embed_tokens.weight")[i * PAIR_E + i] = 1;
        weights_of(t, -1, "lm_head.weight")[i * PAIR_E + i] = 1;
    }
    set_pair(t, 0, "self_attn.v_proj.weight", 2,
             0); /* previous token: its identity goes to the upper half */
    set_pair_output(t, 0, 2, 8);
    set_pair(t, 0, "self_attn.v_proj.weight", 0, 4); /* another head, whose output no head reads */
    set_pair_output(t, 0, 0, 12);
    set_pair(t, 1, "self_attn.q_proj.weight", 1, 0);
    set_pair(t, 1, "self_attn.k_proj.weight", 1, 8);
    set_pair(t, 1, "self_attn.v_proj.weight", 1, 0);
    set_pair_output(t, 1, 1, 0);
    return t;
}

static void induction_pair(void)
{
    mha_context *context = machines_context(2, 6);
    mha_transformer *t = make_pair(context);
    float composed[3][64], keys[8 * PAIR_D * PAIR_E], writes[8 * PAIR_D * PAIR_E];
    double copying[8], matching[8], qk[8 * PAIR_D];
    mha_tensor view[3];
    for (int i = 0; i < 3; i++)
        view[i] = mha_tensor_contiguous(composed[i], MHA_F32, 4, (int64_t[]){2, 4, 2, 4});
    mha_composition composition = {
        .struct_size = sizeof composition, .q = &view[0], .k = &view[1], .v = &view[2]};
    const mha_circuits_desc desc = {.struct_size = sizeof desc, .directions = PAIR_D};
    const mha_circuits out = {.struct_size = sizeof out,
                              .qk_values = qk,
                              .keys = keys,
                              .writes = writes,
                              .copying = copying,
                              .matching = matching};
    expect_ok(mha_transformer_composition(context, t, &composition));
    expect_ok(mha_transformer_circuits(context, t, &desc, &out));
    for (int reader = 0; reader < 8; reader++) {
        for (int writer = 0; writer < 8; writer++)
            for (int i = 0; i < 3; i++) /* matrices of rank 4 and norm 2 score 2 / (2 2) */
                near_to((double)composed[i][reader * 8 + writer],
                        i == 1 && reader == 5 && writer == 2 ? 0.5 : 0, 1e-6, "composition");
        near_to(copying[reader], reader == 5 ? 1 : 0, 1e-12, "copying");
        near_to(matching[reader], 0, 1e-12, "matching: of tokens as they come, no head's");
    }
    for (int k = 0; k < PAIR_D; k++) {
        near_to(qk[5 * PAIR_D + k], 1, 1e-12, "M_QK");
        for (int e = 0; e < PAIR_E; e++) { /* both use the first axes of the upper half */
            const float key = keys[(5 * PAIR_D + k) * PAIR_E + e];
            const float written = writes[(2 * PAIR_D + k) * PAIR_E + e];
            if (e < 8 || e >= 12) assert_true(key == 0 && written == 0);
        }
    }
    mha_transformer_destroy(t);
}

/* ---- comparison with computed activations ---------------------------------------------------- */

typedef struct found {
    double qk[SMALL_LAYERS * SMALL_HEADS * SMALL_SIZE], ov[SMALL_LAYERS * SMALL_HEADS * SMALL_SIZE];
    float vectors[4][SMALL_LAYERS * SMALL_HEADS * SMALL_SIZE * 24];
    double copying[SMALL_LAYERS * SMALL_HEADS], matching[SMALL_LAYERS * SMALL_HEADS];
    mha_circuits out;
} found;

static found *found_make(void)
{
    found *f = malloc(sizeof *f);
    assert_non_null(f);
    memset(f, 0x7f, sizeof *f);
    f->out = (mha_circuits){.struct_size = sizeof f->out,
                            .qk_values = f->qk,
                            .ov_values = f->ov,
                            .queries = f->vectors[0],
                            .keys = f->vectors[1],
                            .reads = f->vectors[2],
                            .writes = f->vectors[3],
                            .copying = f->copying,
                            .matching = f->matching};
    return f;
}

static bool branches(const small_model *m, int64_t layer)
{
    return m->desc.layers && m->desc.layers[layer].flags & MHA_LAYER_BRANCH_NORM;
}

/* Whether heads of a layer read the stream without a norm. */
static bool reads_stream(const small_model *m, int64_t layer)
{
    const uint32_t flags = m->desc.layers ? m->desc.layers[layer].flags : 0;
    return flags & (MHA_LAYER_BRANCH_NORM | MHA_LAYER_NO_ATTENTION_NORM);
}

/* A token of the stream after the layer's norm, without its weight. */
static void normed(const small_model *m, int64_t layer, const float *stream, double *x)
{
    const int64_t width = m->desc.embed_dim;
    double mean = 0, squares = 0;
    const bool reads =
        m->desc.norm && !reads_stream(m, layer) &&
        !(m->desc.flags & (MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_NO_INPUT_NORM));
    for (int64_t e = 0; m->desc.norm == MHA_NORM_LAYER && e < width; e++)
        mean += (double)stream[e] / (double)width;
    for (int64_t e = 0; e < width; e++)
        squares += ((double)stream[e] - mean) * ((double)stream[e] - mean);
    const double size = sqrt(squares / (double)width + (double)m->desc.norm_epsilon);
    for (int64_t e = 0; e < width; e++)
        x[e] = reads ? ((double)stream[e] - mean) / size : (double)stream[e];
}

static double product(const float *vector, const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t e = 0; e < count; e++) sum += (double)vector[e] * x[e];
    return sum;
}

typedef struct checked {
    const small_model *m;
    const found *f;
    mha_layer_view v;
    int64_t layer, offset, rank;
    int checks;
} checked;

static const float *row_of(const mha_tensor *x, int64_t h, int64_t t)
{
    return (const float *)x->data + h * x->stride[1] + t * x->stride[2];
}

/* Scores of the key `offset` before each query are sums over singular triples. */
static void check_scores(checked *c, int64_t h)
{
    const int64_t width = c->m->desc.embed_dim, size = c->m->desc.head_dim;
    const int64_t at = c->layer * c->m->desc.num_heads + h;
    const int64_t kv = h / (c->v.q.shape[1] / c->v.k.shape[1]);
    for (int64_t i = c->offset; i < c->m->T; i++) {
        double x[32], y[32], wanted = 0, got = 0, sizes[2] = {0};
        const float *q = row_of(&c->v.q, h, i), *k = row_of(&c->v.k, kv, i - c->offset);
        normed(c->m, c->layer, (const float *)c->v.stream.data + i * width, x);
        normed(c->m, c->layer, (const float *)c->v.stream.data + (i - c->offset) * width, y);
        for (int64_t d = 0; d < size; d++) {
            wanted += (double)q[d] * (double)k[d];
            sizes[0] += (double)q[d] * (double)q[d], sizes[1] += (double)k[d] * (double)k[d];
        }
        for (int64_t d = 0; d < c->rank; d++) {
            const int64_t place = (at * c->rank + d) * width;
            got += c->f->qk[at * size + d] * product(c->f->vectors[0] + place, x, width) *
                   product(c->f->vectors[1] + place, y, width);
        }
        /* f32 sums of up to 24 terms, norms and tables of angles have a few tens of roundings of
         * 2^-24 */
        near_to(got, wanted, 1e-5 * (sqrt(sizes[0] * sizes[1]) + fabs(c->f->qk[at * size])),
                "score");
        c->checks++;
    }
}

/* A head's output for the value of one token. */
static void check_written(checked *c, int64_t h)
{
    const int64_t width = c->m->desc.embed_dim, size = c->m->desc.head_dim;
    const int64_t at = c->layer * c->m->desc.num_heads + h;
    const int64_t kv = h / (c->v.q.shape[1] / c->v.k.shape[1]), columns = c->v.q.shape[1] * size;
    const bool branch = c->m->desc.flags & MHA_TRANSFORMER_BRANCH_NORM || branches(c->m, c->layer);
    const float *o = weights_of(c->m->t, c->layer, "self_attn.o_proj.weight");
    const float *gain = branch ? weights_of(c->m->t, c->layer, "self_attn_post_norm.weight") : NULL;
    double x[32], wanted[32], got[32] = {0}, mean = 0;
    normed(c->m, c->layer, c->v.stream.data, x);
    for (int64_t e = 0; e < width; e++) {
        wanted[e] = 0;
        for (int64_t d = 0; d < size; d++)
            wanted[e] += (double)o[e * columns + h * size + d] * (double)row_of(&c->v.v, kv, 0)[d];
        if (c->m->desc.norm == MHA_NORM_LAYER) mean += wanted[e] / (double)width;
    }
    for (int64_t d = 0; d < c->rank; d++) {
        const int64_t place = (at * c->rank + d) * width;
        const double read = product(c->f->vectors[2] + place, x, width);
        for (int64_t e = 0; e < width; e++)
            got[e] += c->f->ov[at * size + d] * (double)c->f->vectors[3][place + e] * read;
    }
    const double bound = 1e-5 * c->f->ov[at * size] *
                         (sqrt((double)width) + sqrt(product(c->v.stream.data, x, width) + 1));
    for (int64_t e = 0; e < width; e++)
        near_to(got[e],
                (double)c->m->desc.residual_scale *
                    (gain ? (wanted[e] - mean) * (double)gain[e] : wanted[e]),
                bound, "written");
    c->checks++;
}

static void zero_biases(mha_context *context, small_model *m)
{
    for (int64_t i = 0; i < mha_transformer_parameters(m->t); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(m->t, i, &p));
        const size_t length = strlen(p.name);
        if (length > 5 && !strcmp(p.name + length - 5, ".bias"))
            memset(mha_transformer_data(m->t) + p.offset, 0, (size_t)p.count * sizeof(float));
    }
    expect_ok(mha_transformer_update(context, m->t));
}

/* Norms of queries and keys divide by factors that circuits do not contain. */
static bool divides(const small_model *m, int64_t layer)
{
    return m->desc.layers && m->desc.layers[layer].flags & MHA_LAYER_QK_NORM;
}

static int check_model(mha_context *context, rng *r)
{
    small_model *m = small_model_make(context, r, rng_chance(r, 0.5) ? MHA_TRANSFORMER_CAUSAL : 0);
    found *f = found_make();
    mha_activations *kept;
    zero_biases(context, m);
    expect_ok(mha_activations_create(context, m->t, m->B * m->T, 0, &kept));
    small_model_run(context, m, kept);
    const int64_t rank =
        m->desc.head_dim < m->desc.embed_dim ? m->desc.head_dim : m->desc.embed_dim;
    checked c = {.m = m, .f = f, .rank = rank, .offset = rng_between(r, 0, m->T - 1)};
    const mha_circuits_desc desc = {.struct_size = sizeof desc,
                                    .first_offset = c.offset,
                                    .last_offset = c.offset,
                                    .directions = rank};
    expect_ok(mha_transformer_circuits(context, m->t, &desc, &f->out));
    for (c.layer = 0; c.layer < m->desc.num_layers; c.layer++) {
        c.v = (mha_layer_view){.struct_size = sizeof c.v};
        expect_ok(mha_activations_layer(kept, c.layer, MHA_PART_SELF_ATTENTION, &c.v));
        for (int64_t h = 0; h < m->desc.num_heads; h++) {
            if (!divides(m, c.layer)) check_scores(&c, h);
            check_written(&c, h);
            const int64_t at = c.layer * m->desc.num_heads + h;
            assert_true(fabs(f->copying[at]) <= 1 && fabs(f->matching[at]) <= 1);
        }
    }
    mha_activations_destroy(kept);
    free(f);
    small_model_free(m);
    return c.checks;
}

static void activations(void)
{
    int first, end, checks = 0;
    rng_range(40, 400, &first, &end);
    for (int i = first; i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        checks += check_model(machines_context(1 + i % 3, i), &r);
    }
    assert_true(checks > 0);
}

/* Any number of threads and any selection of heads give the same bits. Other entries are
 * unchanged. */
static void same_bits(void)
{
    int first, end;
    rng_range(12, 100, &first, &end);
    for (int i = first; i < end; i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        small_model *m = small_model_make(machines_context(1, i), &r, 0);
        const int64_t L = m->desc.num_layers, heads = m->desc.num_heads, size = m->desc.head_dim;
        const int64_t K = 2, width = m->desc.embed_dim;
        uint8_t chosen[SMALL_LAYERS * SMALL_HEADS] = {0};
        found *all = found_make(), *some = found_make(), *none = found_make();
        mha_circuits_desc desc = {.struct_size = sizeof desc,
                                  .flags = i % 2 ? MHA_CIRCUITS_NORMED_TOKENS : 0,
                                  .last_offset = 3,
                                  .directions = K};
        expect_ok(mha_transformer_circuits(machines_context(1, i), m->t, &desc, &all->out));
        for (int64_t h = 0; h < L * heads; h++) chosen[h] = rng_chance(&r, 0.5);
        desc.heads = chosen;
        expect_ok(mha_transformer_circuits(machines_context(3, i), m->t, &desc, &some->out));
        for (int64_t h = 0; h < L * heads; h++) {
            const found *same = chosen[h] ? all : none;
            assert_memory_equal(some->qk + h * size, same->qk + h * size,
                                (size_t)size * sizeof(double));
            assert_memory_equal(some->ov + h * size, same->ov + h * size,
                                (size_t)size * sizeof(double));
            assert_memory_equal(some->copying + h, same->copying + h, sizeof(double));
            assert_memory_equal(some->matching + h, same->matching + h, sizeof(double));
            for (int v = 0; v < 4; v++)
                assert_memory_equal(some->vectors[v] + h * K * width,
                                    same->vectors[v] + h * K * width,
                                    (size_t)(K * width) * sizeof(float));
        }
        free(all), free(some), free(none);
        small_model_free(m);
    }
}

/* ---- tokens --------------------------------------------------------------------------------- */

static void known_tokens(void)
{
    mha_context *context = machines_context(2, 4);
    mha_transformer *t = make_plain(context, MHA_ENCODING_NONE);
    const float directions[2 * E] = {3, -1, 3, 0, 5, -1, 0, -7, 0, 0, 0, 0, 0, 0, 0, 1};
    int32_t ids[2 * 2 * 3];
    float values[2 * 2 * 3];
    mha_direction_desc desc = {.struct_size = sizeof desc, .count = 2, .most = 3};
    static const int32_t wanted[] = {4, 0, 2, 7, 1, 5, 7, 0, 1, 0, 1, 2};
    static const float of[] = {5, 3, 3, -7, -1, -1, 1, 0, 0, 0, 0, 0};
    for (int side = 0; side < 2; side++) {
        desc.side = (mha_token_side)side;
        expect_ok(mha_direction_tokens(context, t, &desc, directions, ids, values));
        assert_memory_equal(ids, wanted, sizeof wanted);
        for (int i = 0; i < 12; i++) assert_true(values[i] == of[i]);
    }
    uint8_t listed[V] = {1, 1, 1, 1, 0, 1, 1, 0};
    desc.tokens = listed;
    static const int32_t fewer[] = {0, 2, 3, 1, 5, 3};
    expect_ok(mha_direction_tokens(context, t, &desc, directions, ids, NULL));
    assert_memory_equal(ids, fewer, sizeof fewer);
    mha_transformer_destroy(t);
}

/* A token of a random transformer, in double. */
static void token_of(small_model *m, mha_token_side side, uint32_t flags, int64_t id, double *x)
{
    const int64_t width = m->desc.embed_dim;
    const bool output =
        side == MHA_SIDE_UNEMBEDDING && !(m->desc.flags & MHA_TRANSFORMER_NO_OUTPUT);
    const bool tied = m->desc.flags & MHA_TRANSFORMER_TIED;
    const bool pre = m->desc.norm && !(m->desc.flags & MHA_TRANSFORMER_POST_NORM);
    const bool reads =
        pre && !(m->desc.flags & MHA_TRANSFORMER_NO_INPUT_NORM) && !reads_stream(m, 0);
    const bool embed = m->desc.flags & MHA_TRANSFORMER_EMBEDDING_NORM,
               layer = m->desc.norm == MHA_NORM_LAYER;
    const bool divides_rows = flags & MHA_CIRCUITS_NORMED_TOKENS;
    const float *row =
        weights_of(m->t, -1, output && !tied ? "lm_head.weight" : "embed_tokens.weight") +
        id * width;
    const float *gain = output ? (pre ? weights_of(m->t, -1, "norm.weight") : NULL)
                               : (embed ? weights_of(m->t, -1, "embed_norm.weight") : NULL);
    for (int64_t e = 0; e < width; e++) x[e] = (double)row[e];
    for (int pass = 0; pass < 2;
         pass++) { /* first the embedding's norm, then the divisor of the first layer's norm */
        double mean = 0, squares = 0;
        if (output) break;
        if (pass ? !(reads && divides_rows) : !embed) continue;
        for (int64_t e = 0; layer && e < width; e++) mean += x[e] / (double)width;
        for (int64_t e = 0; e < width; e++) squares += (x[e] - mean) * (x[e] - mean);
        const double size =
            divides_rows ? sqrt(squares / (double)width + (double)m->desc.norm_epsilon) : 1;
        for (int64_t e = 0; e < width; e++)
            x[e] = pass ? x[e] / size : (x[e] - mean) / size * (double)gain[e];
    }
    double mean = 0;
    for (int64_t e = 0; output && gain && e < width; e++) x[e] *= (double)gain[e];
    for (int64_t e = 0; output && gain && layer && e < width; e++) mean += x[e] / (double)width;
    for (int64_t e = 0; e < width; e++)
        x[e] = (output ? (double)m->desc.logit_scale : 1) * (x[e] - mean);
}

static void check_ends(small_model *m, const mha_direction_desc *desc, const float *direction,
                       const int32_t *ids, const float *values)
{
    double each[SMALL_WIDTH], x[32];
    for (int64_t i = 0; i < m->desc.vocab_size; i++) {
        token_of(m, desc->side, desc->flags, i, x);
        each[i] = product(direction, x, m->desc.embed_dim);
    }
    for (int end = 0; end < 2; end++)
        for (int64_t n = 0; n < desc->most; n++) {
            const int64_t at = end * desc->most + n;
            near_to((double)values[at], each[ids[at]], 1e-4, "value of a token");
            if (n) assert_true(end ? values[at] >= values[at - 1] : values[at] <= values[at - 1]);
            for (int64_t i = 0; n == desc->most - 1 && i < m->desc.vocab_size; i++) {
                bool in = false;
                for (int64_t k = 0; k < desc->most; k++) in |= ids[end * desc->most + k] == i;
                if (!in)
                    assert_true(end ? each[i] > (double)values[at] - 1e-4
                                    : each[i] < (double)values[at] + 1e-4);
            }
        }
}

static void random_tokens(void)
{
    int first, end;
    rng_range(40, 400, &first, &end);
    for (int i = first; i < end; i++) {
        rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
        static const uint32_t kinds[] = {0, MHA_TRANSFORMER_TIED, MHA_TRANSFORMER_NO_OUTPUT};
        mha_context *context = machines_context(1 + i % 3, i);
        small_model *m = small_model_make(context, &r, kinds[i % 3]);
        const int64_t M = rng_between(&r, 1, 20), N = rng_between(&r, 1, m->desc.vocab_size);
        float directions[20 * 24], values[20 * 2 * SMALL_WIDTH];
        int32_t ids[20 * 2 * SMALL_WIDTH];
        const mha_direction_desc desc = {.struct_size = sizeof desc,
                                         .flags =
                                             rng_chance(&r, 0.5) ? MHA_CIRCUITS_NORMED_TOKENS : 0,
                                         .side = (mha_token_side)rng_between(&r, 0, 1),
                                         .count = M,
                                         .most = N};
        for (int64_t e = 0; e < M * m->desc.embed_dim; e++) directions[e] = rng_normal(&r);
        expect_ok(mha_direction_tokens(context, m->t, &desc, directions, ids, values));
        for (int64_t d = 0; d < M; d++)
            check_ends(m, &desc, directions + d * m->desc.embed_dim, ids + d * 2 * N,
                       values + d * 2 * N);
        small_model_free(m);
    }
}

/* ---- misuse --------------------------------------------------------------------------------- */

static mha_status refuse(int64_t done, int64_t total, void *user)
{
    (void)user;
    return done == total - 1 ? MHA_ERR_CALLBACK : MHA_OK;
}

static void misuse(void)
{
    mha_context *c = machines_context(2, 5);
    mha_transformer *t = make_plain(c, MHA_ENCODING_ROTARY);
    double values[H * D];
    mha_circuits out = {.struct_size = sizeof out, .qk_values = values};
    mha_circuits_desc d = {.struct_size = sizeof d};
    const float axis[E] = {1};
    int32_t ids[2 * V];
    mha_direction_desc e = {.struct_size = sizeof e, .count = 1, .most = V};
    const uint8_t few[V] = {1, 1};
    expect_ok(mha_transformer_circuits(c, t, &d, &out));
    expect_ok(mha_direction_tokens(c, t, &e, axis, ids, NULL));
    expect_error(mha_transformer_circuits(NULL, t, &d, &out), MHA_ERR_NULL, "context");
    expect_error(mha_transformer_circuits(c, NULL, &d, &out), MHA_ERR_NULL, "transformer");
    expect_error(mha_transformer_circuits(c, t, &d, NULL), MHA_ERR_NULL, "out");
    expect_error(mha_direction_tokens(c, t, NULL, axis, ids, NULL), MHA_ERR_NULL, "desc");
    expect_error(mha_direction_tokens(c, t, &e, NULL, ids, NULL), MHA_ERR_NULL, "directions");
    expect_error(mha_direction_tokens(c, t, &e, axis, NULL, NULL), MHA_ERR_NULL, "ids");
#define CIRCUITS mha_transformer_circuits(c, t, &d, &out)
    expect_spoiled(d, CIRCUITS, MHA_ERR_ARGUMENT, "struct_size", d.struct_size = 0);
    expect_spoiled(out, CIRCUITS, MHA_ERR_ARGUMENT, "struct_size", out.struct_size = 3);
    expect_spoiled(d, CIRCUITS, MHA_ERR_UNSUPPORTED, "0x80", d.flags = 0x80);
    expect_spoiled(out, CIRCUITS, MHA_ERR_UNSUPPORTED, "reserved 1", out.reserved = 1);
    expect_spoiled(d, CIRCUITS, MHA_ERR_ARGUMENT, "offsets 1 to 0", d.first_offset = 1);
    expect_spoiled(d, CIRCUITS, MHA_ERR_ARGUMENT, "2^20", d.last_offset = 1 << 20);
    expect_spoiled(d, CIRCUITS, MHA_ERR_ARGUMENT, "2^40",
                   d.first_offset = d.last_offset = INT64_MIN);
    expect_spoiled(d, CIRCUITS, MHA_ERR_ARGUMENT, "directions is 3", d.directions = D + 1);
    expect_spoiled(d, CIRCUITS, MHA_ERR_CALLBACK, "", d.progress = refuse);
#define TOKENS mha_direction_tokens(c, t, &e, axis, ids, NULL)
    expect_spoiled(e, TOKENS, MHA_ERR_ARGUMENT, "struct_size", e.struct_size = 8);
    expect_spoiled(e, TOKENS, MHA_ERR_UNSUPPORTED, "flags 0x2", e.flags = 2);
    expect_spoiled(e, TOKENS, MHA_ERR_UNSUPPORTED, "reserved 1", e.reserved = 1);
    expect_spoiled(e, TOKENS, MHA_ERR_ARGUMENT, "side is 2", e.side = (mha_token_side)2);
    expect_spoiled(e, TOKENS, MHA_ERR_ARGUMENT, "most 9", e.most = V + 1);
    expect_spoiled(e, TOKENS, MHA_ERR_ARGUMENT, "1..2", e.tokens = few);
    expect_spoiled(e, TOKENS, MHA_ERR_ARGUMENT, "count is -1", e.count = -1);
    weights_of(t, 0, "self_attn.k_proj.weight")[3] = INFINITY;
    expect_error(CIRCUITS, MHA_ERR_NUMERIC, "layers.0.self_attn.k_proj.weight");
    weights_of(t, 0, "self_attn.k_proj.weight")[3] = 0;
    weights_of(t, -1, "embed_tokens.weight")[V * E - 1] = NAN;
    expect_ok(CIRCUITS);
    out.copying = values;
    expect_error(CIRCUITS, MHA_ERR_NUMERIC, "embed_tokens.weight");
    expect_error(TOKENS, MHA_ERR_NUMERIC, "embed_tokens.weight");
    mha_transformer_destroy(t);
}

static mha_status all_of_it(mha_context *context, failing_alloc *memory, void *user)
{
    mha_transformer *t = make_plain(context, MHA_ENCODING_ROTARY);
    double values[4][H * D];
    float queries[H * E];
    int32_t ids[4];
    (void)user;
    const mha_circuits out = {.struct_size = sizeof out,
                              .qk_values = values[0],
                              .ov_values = values[1],
                              .copying = values[2],
                              .matching = values[3],
                              .queries = queries};
    const mha_direction_desc desc = {.struct_size = sizeof desc, .count = 1, .most = 2};
    failing_from_here(memory);
    mha_status status = mha_transformer_circuits(context, t, NULL, &out);
    if (status == MHA_OK) status = mha_direction_tokens(context, t, &desc, queries, ids, NULL);
    mha_transformer_destroy(t);
    return status;
}

static void no_memory(void)
{
    assert_true(failing_each(all_of_it, NULL) > 0);
}

RUN_TESTS(TEST(copiers), TEST(known_values), TEST(equal_elements), TEST(known_rotation),
          TEST(random_heads), TEST(induction_pair), TEST(activations), TEST(same_bits),
          TEST(known_tokens), TEST(random_tokens), TEST(misuse), TEST(no_memory))
