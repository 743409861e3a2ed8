/* The QK and OV circuits of heads, layer by layer. Weights are read and folded; then each head is
 * an independent item. Tall matrices [E,D] are stored by columns, so that a head's rows of W_Q are
 * used in place. circuits.h has the formulas. */
#include "circuits/circuits_lapack.h"
#include "circuits/circuits_weights.h"

#include <math.h>
#include <string.h>

/* Scratch of one thread. */
typedef struct circuits_room {
    double *left, *right, *ends;          /* [E,D] */
    double *left_r, *right_r, *core;      /* [D,D] */
    double *u, *vt, *values;              /* [D,D] */
    double *left_tau, *right_tau, *pairs; /* [D], [D], [2 D] */
    double *lapack;
} circuits_room;

/* A layer's weights. */
typedef struct circuits_layer {
    mhai_weight q, k, v, o;
    mhai_weight norm, q_norm, k_norm, branch_norm;
    int64_t index, H, Hk;
    int64_t rotary; /* number of elements that are rotated */
    mha_rope_pairing pairing;
    double *cosines, *sines; /* [rotary / 2] of R */
    double *read, *found;    /* [Hk D,E] W_V and W_K, multiplied by Gram matrices */
} circuits_layer;

typedef struct circuits_job {
    mha_context *context;
    const mha_transformer *t;
    const mha_transformer_desc *d;
    mha_circuits_desc desc;
    mha_circuits out;
    int64_t L, H, D, E, K, rank; /* rank: the maximum over all circuits */
    bool centred;
    double scale;             /* of each block's contribution to the stream */
    double *copies, *matches; /* [E,E] Gram matrices, or NULL */
    circuits_room *rooms;     /* [threads] */
    int64_t lapack_size;
    bool *failed; /* [threads] */
    circuits_layer layer;
} circuits_job;

/* ---- weights with norms folded in ----------------------------------------------------------- */

void mhai_circuits_centre(double *x, int64_t count)
{
    double sum = 0;
    for (int64_t e = 0; e < count; e++) sum += x[e];
    for (int64_t e = 0; e < count; e++) x[e] -= sum / (double)count;
}

/* Load a row of W_Q, W_K or W_V, folded with the norm before the layer. scales: [D] or NULL. */
static void load_row(const circuits_job *job, const mhai_weight *weight, const mhai_weight *scales,
                     int64_t row, double *to)
{
    const float *norm = job->layer.norm.data, *from = weight->data + row * job->E;
    const double scale = scales && scales->data ? (double)scales->data[row % scales->rows] : 1;
    for (int64_t e = 0; e < job->E; e++)
        to[e] = (double)from[e] * scale * (norm ? (double)norm[e] : 1);
    if (norm && job->centred) mhai_circuits_centre(to, job->E);
}

static void load_rows(const circuits_job *job, const mhai_weight *weight, const mhai_weight *scales,
                      int64_t head, double *to)
{
    for (int64_t d = 0; d < job->D; d++)
        load_row(job, weight, scales, head * job->D + d, to + d * job->E);
}

/* Load the columns of W_O, folded with the branch norm. */
static void load_columns(const circuits_job *job, int64_t head, double *to)
{
    const mhai_weight *o = &job->layer.o;
    const float *norm = job->layer.branch_norm.data;
    for (int64_t d = 0; d < job->D; d++, to += job->E) {
        for (int64_t e = 0; e < job->E; e++)
            to[e] = (double)o->data[e * o->columns + head * job->D + d];
        if (norm && job->centred) mhai_circuits_centre(to, job->E);
        for (int64_t e = 0; e < job->E; e++) to[e] *= job->scale * (norm ? (double)norm[e] : 1);
    }
}

/* x = R x, over the rows d of x [D,count]. Rows are `stride` apart, elements `step`. */
static void rotate(const circuits_job *job, double *x, int64_t count, int64_t stride, int64_t step)
{
    const circuits_layer *l = &job->layer;
    const int64_t half = l->rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        const bool halves = l->pairing == MHA_ROPE_HALVES;
        double *a = x + (halves ? i : 2 * i) * stride, *b = a + (halves ? half : 1) * stride;
        for (int64_t c = 0; c < count; c++) {
            const double first = a[c * step], second = b[c * step];
            a[c * step] = l->cosines[i] * first + l->sines[i] * second;
            b[c * step] = l->cosines[i] * second - l->sines[i] * first;
        }
    }
}

/* ---- one head ------------------------------------------------------------------------------- */

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* The sum of eigenvalues of core [D,D], divided by the sum of their magnitudes. Overwrites core. */
static bool eigenvalue_score(const circuits_job *job, const circuits_room *room, double *score)
{
    double *real = room->pairs, *imaginary = real + job->D, sum = 0, sizes = 0;
    if (!mhai_lapack_eigenvalues(job->D, room->core, real, imaginary, room->lapack,
                                 job->lapack_size))
        return false;
    for (int64_t i = 0; i < job->D; i++) {
        sum += real[i];
        sizes += sqrt(real[i] * real[i] + imaginary[i] * imaginary[i]);
    }
    *score = sizes == 0 ? 0 : sum / sizes;
    return true;
}

/* core = read [D,E] (stored by rows) times tall [E,D]. */
static void fill_core(const circuits_job *job, const double *read, const double *tall, double *core)
{
    for (int64_t j = 0; j < job->D; j++)
        for (int64_t i = 0; i < job->D; i++)
            core[j * job->D + i] = dot(read + i * job->E, tall + j * job->E, job->E);
}

/* Extract R of a QR decomposition, [rank,D], stored by columns. */
static void take_r(const circuits_job *job, const double *tall, double *r)
{
    for (int64_t j = 0; j < job->D; j++)
        for (int64_t i = 0; i < job->rank; i++)
            r[j * job->rank + i] = i <= j ? tall[j * job->E + i] : 0;
}

/* core [rank,rank] = left_r right_r^T, both [rank,D]. For the QK circuit,
 * right_r is rotated first. */
static void multiply_r(const circuits_job *job, const circuits_room *room, bool rotated)
{
    const int64_t n = job->rank;
    if (rotated) rotate(job, room->right_r, n, n, 1);
    memset(room->core, 0, (size_t)(n * n) * sizeof *room->core);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < job->D; d++) {
            const double factor = room->right_r[d * n + j];
            for (int64_t i = 0; i < n; i++)
                room->core[j * n + i] += room->left_r[d * n + i] * factor;
        }
}

/* The sign that makes the largest element of the left vector positive. Among elements that are
 * equal up to rounding, the first is used. */
static double sign_of(const double *vector, int64_t count)
{
    int64_t at = 0;
    for (int64_t e = 1; e < count; e++)
        if (fabs(vector[e]) > (1 + 0x1p-30) * fabs(vector[at])) at = e;
    return count > 0 && vector[at] < 0 ? -1 : 1;
}

/* ends [E,K] = Q times the first K columns of u (transposed: the first K rows of vt). */
static bool lift(const circuits_job *job, const circuits_room *room, const double *tall,
                 const double *tau, const double *small, bool rows)
{
    const int64_t n = job->rank, E = job->E;
    memset(room->ends, 0, (size_t)(E * job->K) * sizeof *room->ends);
    for (int64_t k = 0; k < job->K && k < n; k++)
        for (int64_t i = 0; i < n; i++)
            room->ends[k * E + i] = rows ? small[i * n + k] : small[k * n + i];
    return mhai_lapack_times_q(E, job->K, n, tall, tau, room->ends, room->lapack, job->lapack_size);
}

static void put_ends(const circuits_job *job, const circuits_room *room, const double *signs,
                     float *to)
{
    for (int64_t k = 0; k < job->K; k++)
        for (int64_t e = 0; e < job->E; e++)
            to[k * job->E + e] = (float)(signs[k] * room->ends[k * job->E + e]);
}

static bool put_vectors(const circuits_job *job, const circuits_room *room, float *left,
                        float *right)
{
    double *signs = room->pairs;
    if (!lift(job, room, room->left, room->left_tau, room->u, false)) return false;
    for (int64_t k = 0; k < job->K; k++) signs[k] = sign_of(room->ends + k * job->E, job->E);
    if (left) put_ends(job, room, signs, left);
    if (!right) return true;
    if (!lift(job, room, room->right, room->right_tau, room->vt, true)) return false;
    put_ends(job, room, signs, right);
    return true;
}

/* Compute the singular values and vectors of left right^T. Both are [E,D] and overwritten. */
static bool decompose(const circuits_job *job, const circuits_room *room, bool rotated,
                      double *values, float *left, float *right)
{
    const bool vectors = left || right;
    double *found = room->values;
    if (!mhai_lapack_qr(job->E, job->D, room->left, room->left_tau, room->lapack,
                        job->lapack_size) ||
        !mhai_lapack_qr(job->E, job->D, room->right, room->right_tau, room->lapack,
                        job->lapack_size))
        return false;
    take_r(job, room->left, room->left_r);
    take_r(job, room->right, room->right_r);
    multiply_r(job, room, rotated);
    if (!mhai_lapack_svd(job->rank, room->core, found, vectors ? room->u : NULL,
                         vectors ? room->vt : NULL, room->lapack, job->lapack_size))
        return false;
    for (int64_t i = 0; values && i < job->D; i++) values[i] = i < job->rank ? found[i] : 0;
    return !vectors || put_vectors(job, room, left, right);
}

static double *values_at(const circuits_job *job, double *values, int64_t head)
{
    return values ? values + (job->layer.index * job->H + head) * job->D : NULL;
}

static float *vectors_at(const circuits_job *job, float *vectors, int64_t head)
{
    return vectors ? vectors + (job->layer.index * job->H + head) * job->K * job->E : NULL;
}

static bool do_qk(const circuits_job *job, const circuits_room *room, int64_t h, int64_t kv)
{
    const circuits_layer *l = &job->layer;
    load_rows(job, &l->q, &l->q_norm, h, room->left);
    if (job->out.matching) {
        fill_core(job, l->found + kv * job->D * job->E, room->left, room->core);
        rotate(job, room->core, job->D, 1, job->D);
        if (!eigenvalue_score(job, room, job->out.matching + l->index * job->H + h)) return false;
    }
    if (!job->out.qk_values && !job->out.queries && !job->out.keys) return true;
    load_rows(job, &l->k, &l->k_norm, kv, room->right);
    return decompose(job, room, true, values_at(job, job->out.qk_values, h),
                     vectors_at(job, job->out.queries, h), vectors_at(job, job->out.keys, h));
}

static bool do_ov(const circuits_job *job, const circuits_room *room, int64_t h, int64_t kv)
{
    const circuits_layer *l = &job->layer;
    load_columns(job, h, room->left);
    if (job->out.copying) {
        fill_core(job, l->read + kv * job->D * job->E, room->left, room->core);
        if (!eigenvalue_score(job, room, job->out.copying + l->index * job->H + h)) return false;
    }
    if (!job->out.ov_values && !job->out.reads && !job->out.writes) return true;
    load_rows(job, &l->v, NULL, kv, room->right);
    return decompose(job, room, false, values_at(job, job->out.ov_values, h),
                     vectors_at(job, job->out.writes, h), vectors_at(job, job->out.reads, h));
}

static bool is_chosen(const circuits_job *job, int64_t head)
{
    return !job->desc.heads || job->desc.heads[job->layer.index * job->H + head];
}

static void do_head(void *argument, int64_t h, int worker)
{
    const circuits_job *job = argument;
    const circuits_layer *l = &job->layer;
    const int64_t kv = h / (l->H / l->Hk);
    if (!is_chosen(job, h)) return;
    if (!do_qk(job, &job->rooms[worker], h, kv) || !do_ov(job, &job->rooms[worker], h, kv))
        job->failed[worker] = true;
}

/* ---- one layer ------------------------------------------------------------------------------ */

/* Items are rows of W_V or W_K. Multiply a row by a Gram matrix if its group has a chosen head. */
static void read_row(void *argument, int64_t item, int worker)
{
    const circuits_job *job = argument;
    const circuits_layer *l = &job->layer;
    const int64_t E = job->E, rows = l->Hk * job->D, row = item % rows, group = l->H / l->Hk;
    const bool keys = item >= rows;
    const double *gram = keys ? job->matches : job->copies;
    double *to = (keys ? l->found : l->read) + row * E, *own = job->rooms[worker].ends;
    bool chosen = false;
    for (int64_t g = 0; g < group; g++) chosen |= is_chosen(job, row / job->D * group + g);
    if (!gram || !chosen) return;
    load_row(job, keys ? &l->k : &l->v, keys ? &l->k_norm : NULL, row, own);
    memset(to, 0, (size_t)E * sizeof *to);
    for (int64_t e = 0; e < E; e++) {
        const double factor = own[e], *from = gram + e * E;
        for (int64_t f = 0; f < E; f++) to[f] += factor * from[f];
    }
}

/* Average R over the offsets. */
static mha_status average_rotation(circuits_job *job, mha_layer_rotation *rotation)
{
    circuits_layer *l = &job->layer;
    const int64_t first = job->desc.first_offset, last = job->desc.last_offset;
    const double squared = rotation->amplitude * rotation->amplitude;
    const double count = (double)(last - first + 1);
    for (int64_t i = 0; i < l->rotary / 2; i++) {
        const double turns = rotation->frequencies[i] / 6.28318530717958647693;
        double cosines = 0, sines = 0;
        for (int64_t o = first; o <= last; o++) {
            cosines += mha_cos_turns((double)o * turns);
            sines += mha_cos_turns((double)o * turns - 0.25);
        }
        l->cosines[i] = squared * cosines / count;
        l->sines[i] = squared * sines / count;
    }
    return MHA_OK;
}

static mha_status find_rotation(circuits_job *job)
{
    circuits_layer *l = &job->layer;
    mha_layer_rotation rotation = {.struct_size = sizeof rotation};
    MHA_TRY(mhai_circuits_take(job->context, 3, job->D / 2, sizeof(double), &rotation.frequencies));
    l->cosines = rotation.frequencies + job->D / 2;
    l->sines = l->cosines + job->D / 2;
    MHA_TRY(mha_transformer_rotation(job->t, l->index, &rotation));
    l->rotary = rotation.rotary_dim;
    l->pairing = rotation.pairing;
    return average_rotation(job, &rotation);
}

static mha_status find_weights(circuits_job *job)
{
    circuits_layer *l = &job->layer;
    const struct {
        const char *name;
        mhai_weight *weight;
        bool wanted;
    } parts[] = {{"self_attn.q_proj.weight", &l->q, true},
                 {"self_attn.k_proj.weight", &l->k, true},
                 {"self_attn.v_proj.weight", &l->v, true},
                 {"self_attn.o_proj.weight", &l->o, true},
                 {"self_attn.q_norm.weight", &l->q_norm, true},
                 {"self_attn.k_norm.weight", &l->k_norm, true},
                 {"self_attn_norm.weight", &l->norm, mha_transformer_norms_input(job->d, l->index)},
                 {"self_attn_post_norm.weight", &l->branch_norm, true}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].wanted)
            MHA_TRY(mhai_circuits_weight(job->context, job->t, l->index, parts[i].name,
                                         parts[i].weight));
    if (job->d->layers && job->d->layers[l->index].latent_dim > 0)
        MHA_TRY(mhai_circuits_latent(job->context, job->t, job->d, l->index, &l->q, &l->k, &l->v,
                                     &l->o));
    l->H = l->q.rows / job->D;
    l->Hk = l->k.rows / job->D;
    return MHA_OK;
}

static mha_status do_layer(circuits_job *job, int64_t index)
{
    circuits_layer *l = &job->layer;
    *l = (circuits_layer){.index = index};
    MHA_TRY(find_weights(job));
    if (l->H == 0) return MHA_OK;
    MHA_TRY(find_rotation(job));
    if (job->copies || job->matches) {
        const int64_t rows = l->Hk * job->D;
        MHA_TRY(mhai_circuits_take(job->context, 2 * rows, job->E, sizeof(double), &l->read));
        l->found = l->read + rows * job->E;
        mha_parallel_for(job->context, 2 * rows, read_row, job);
    }
    mha_parallel_for(job->context, l->H, do_head, job);
    for (int i = 0; i < mha_context_threads(job->context); i++)
        if (job->failed[i])
            return mha_fail(MHA_ERR_NUMERIC, "circuits: LAPACK does not converge on layer %lld",
                            (long long)index);
    return MHA_OK;
}

/* ---- the call ------------------------------------------------------------------------------- */

static mha_status take_room(circuits_job *job, circuits_room *room)
{
    const int64_t D = job->D, tall = D * job->E, square = D * D;
    MHA_TRY(mhai_circuits_take(job->context, 1, 3 * tall + 6 * square + 4 * D + job->lapack_size,
                               sizeof(double), &room->left));
    room->right = room->left + tall;
    room->ends = room->right + tall;
    room->left_r = room->ends + tall;
    room->right_r = room->left_r + square;
    room->core = room->right_r + square;
    room->u = room->core + square;
    room->vt = room->u + square;
    room->values = room->vt + square;
    room->left_tau = room->values + square;
    room->right_tau = room->left_tau + D;
    room->pairs = room->right_tau + D;
    room->lapack = room->pairs + 2 * D;
    return MHA_OK;
}

static mha_status take_rooms(circuits_job *job)
{
    const int threads = mha_context_threads(job->context);
    if (!mhai_lapack_fits(8 * job->E, job->D) || !mhai_lapack_fits(8 * job->D, job->D))
        return mha_fail(MHA_ERR_SIZE, "circuits: heads of %lld x %lld are more than LAPACK counts",
                        (long long)job->E, (long long)job->D);
    job->lapack_size = mhai_lapack_room(job->E, job->D);
    MHA_TRY(mhai_circuits_take(job->context, threads, 1, sizeof *job->rooms, &job->rooms));
    MHA_TRY(mhai_circuits_take(job->context, threads, 1, sizeof *job->failed, &job->failed));
    memset(job->failed, 0, (size_t)threads * sizeof *job->failed);
    for (int i = 0; i < threads; i++) MHA_TRY(take_room(job, &job->rooms[i]));
    return MHA_OK;
}

static mha_status take_gram(circuits_job *job, const mhai_tokens *a, const mhai_tokens *b,
                            int power, double **gram)
{
    MHA_TRY(mhai_circuits_take(job->context, job->E, job->E, sizeof(double), gram));
    return mhai_circuits_gram(job->context, job->t, a, b, power, &job->desc, *gram);
}

static mha_status take_grams(circuits_job *job)
{
    mhai_tokens tokens, logits;
    MHA_TRY(
        mhai_circuits_tokens(job->context, job->t, MHA_SIDE_EMBEDDING, job->desc.flags, &tokens));
    MHA_TRY(
        mhai_circuits_tokens(job->context, job->t, MHA_SIDE_UNEMBEDDING, job->desc.flags, &logits));
    const bool same = logits.normed; /* without an output layer, the input tokens are used on both
                                      * sides */
    if (job->out.copying) MHA_TRY(take_gram(job, &tokens, &logits, same ? 2 : 1, &job->copies));
    if (job->out.matching) MHA_TRY(take_gram(job, &tokens, &tokens, 2, &job->matches));
    return MHA_OK;
}

static mha_status run(circuits_job *job)
{
    MHA_TRY(take_rooms(job));
    if (job->out.copying || job->out.matching) MHA_TRY(take_grams(job));
    for (int64_t l = 0; l < job->L; l++) {
        mha_scratch_mark mark = mha_scratch_top(job->context);
        if (job->desc.progress) MHA_TRY(job->desc.progress(l, job->L, job->desc.progress_user));
        mha_status status = do_layer(job, l);
        mha_scratch_release(job->context, mark);
        if (status != MHA_OK) return status;
    }
    return MHA_OK;
}

static mha_status check(const circuits_job *job)
{
    const mha_circuits_desc *d = &job->desc;
    const int64_t most = INT64_C(1) << 40, offsets = INT64_C(1) << 20;
    if (d->flags & ~(uint32_t)MHA_CIRCUITS_NORMED_TOKENS || job->out.reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "circuits: flags 0x%x and reserved %u, expected known flags and 0",
                        (unsigned)d->flags, (unsigned)job->out.reserved);
    if (d->first_offset < -most || d->last_offset > most || d->first_offset > d->last_offset ||
        d->last_offset - d->first_offset >= offsets)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_circuits_desc: offsets %lld to %lld, expected at most 2^20 of them, "
                        "the first one first, within 2^40",
                        (long long)d->first_offset, (long long)d->last_offset);
    if (d->directions < 0 || d->directions > job->rank)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_circuits_desc: directions is %lld, expected 0..%lld",
                        (long long)d->directions, (long long)job->rank);
    return MHA_OK;
}

/* Latent attention is a product of weights, if its values are not wider than its keys. */
static const char *beyond_weights(const mha_layer_desc *layer)
{
    return layer && layer->latent_dim > 0 ? NULL : mha_layer_difference(layer);
}

static mha_status check_layers(const mha_transformer_desc *d)
{
    int64_t layer = 0;
    const char *phrase = mha_transformer_phrase(d, beyond_weights, &layer);
    if (phrase)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_transformer_circuits: layer %lld %s: the output of its heads is "
                        "not a product of weights alone",
                        (long long)layer, phrase);
    for (int64_t i = 0; d->layers && i < d->num_layers; i++)
        if (d->layers[i].latent_dim > 0 && d->layers[i].value_dim > d->head_dim)
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "mha_transformer_circuits: layer %lld: value_dim is %lld, expected at "
                            "most head_dim, %lld",
                            (long long)i, (long long)d->layers[i].value_dim,
                            (long long)d->head_dim);
    return MHA_OK;
}

mha_status mha_transformer_circuits(mha_context *context, const mha_transformer *transformer,
                                    const mha_circuits_desc *desc, const mha_circuits *out)
{
    MHA_NEED("mha_transformer_circuits", context, transformer, out);
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_transformer_describe(transformer, &d);
    MHA_TRY(check_layers(&d));
    circuits_job job = {.context = context,
                        .t = transformer,
                        .d = &d,
                        .L = d.num_layers,
                        .H = d.num_heads,
                        .D = d.head_dim,
                        .E = d.embed_dim,
                        .scale = (double)d.residual_scale,
                        .rank = d.head_dim < d.embed_dim ? d.head_dim : d.embed_dim,
                        .centred = d.norm == MHA_NORM_LAYER};
    MHA_TRY(mha_struct_read("mha_circuits_desc", &job.desc, sizeof job.desc, sizeof job.desc, desc,
                            desc ? desc->struct_size : 0));
    MHA_TRY(mha_struct_read("mha_circuits", &job.out, sizeof job.out, sizeof job.out, out,
                            out->struct_size));
    MHA_TRY(check(&job));
    job.K = job.desc.directions ? job.desc.directions : 1;
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(&job));
}
