/* Heads divided among ranks: the assignment of heads, and the gathering of results. */
#include "base/checked.h"
#include "base/context.h"
#include "base/tensor.h"
#include "nn/linear.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>
#include <multihead/distributed.h>

#include <string.h>

/* ---- assignment ------------------------------------------------------------------------------ */

/* The first element of piece i of count. Pieces differ in size by at most one. */
static int64_t cut_at(int64_t length, int64_t i, int64_t count)
{
    return length / count * i + length % count * i / count;
}

mha_status mha_split_heads(int64_t heads, int64_t kv_heads, int32_t rank, int32_t size,
                           mha_head_piece *piece)
{
    if (!piece) return mha_fail(MHA_ERR_NULL, "mha_split_heads: piece is NULL");
    if (heads < 0 || kv_heads < 1 || heads % kv_heads != 0 || size < 1 || rank < 0 || rank >= size)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_split_heads: %lld heads, %lld of keys, rank %d of %d: expected heads "
                        "that are a multiple of those of keys, and a rank below size",
                        (long long)heads, (long long)kv_heads, (int)rank, (int)size);
    const int64_t group = heads / kv_heads;
    if (size <= kv_heads) {
        const int64_t begin = cut_at(kv_heads, rank, size), end = cut_at(kv_heads, rank + 1, size);
        *piece = (mha_head_piece){begin * group, end * group, begin, end};
        return MHA_OK;
    }
    int64_t kv = 0;
    while (cut_at(size, kv + 1, kv_heads) <= rank) kv++;
    const int64_t first = cut_at(size, kv, kv_heads),
                  count = cut_at(size, kv + 1, kv_heads) - first;
    const int64_t begin = cut_at(group, rank - first, count);
    const int64_t end = cut_at(group, rank - first + 1, count);
    *piece = (mha_head_piece){kv * group + begin, kv * group + end, kv, kv + (end > begin)};
    return MHA_OK;
}

/* ---- gathering ------------------------------------------------------------------------------- */

typedef struct gathering {
    const mha_transport *t;
    int axis;
    mha_tensor piece, whole;
    int64_t *extents;     /* [size] length of each rank's piece along the axis */
    unsigned char *bytes; /* all pieces, concatenated */
} gathering;

/* Values on which all ranks must agree. */
typedef struct gather_common {
    int64_t axis, dtype, ndim, shape[MHA_MAX_DIMS];
} gather_common;

static mha_status check(int axis, const mha_tensor *piece, const mha_tensor *whole)
{
    int64_t expected[MHA_MAX_DIMS];
    MHA_TRY(mhai_tensor_check_real("whole", whole));
    MHA_TRY(mhai_tensor_check("whole", whole, whole->dtype, whole->ndim, NULL));
    if (axis < 0 || axis >= whole->ndim)
        return mha_fail(MHA_ERR_ARGUMENT, "axis is %d, whole has %d dimensions", axis,
                        (int)whole->ndim);
    memcpy(expected, whole->shape, sizeof expected);
    expected[axis] = -1;
    MHA_TRY(mhai_tensor_check("piece", piece, whole->dtype, whole->ndim, expected));
    MHA_TRY(mhai_tensor_check_output("whole", whole));
    return mhai_tensor_check_disjoint("whole", whole, "piece", piece);
}

static mha_status take(mha_context *context, gathering *g)
{
    int64_t count;
    MHA_TRY(mha_tensor_count(&g->whole, &count));
    MHA_TRY(mha_scratch_alloc(context, count, mha_dtype_size(g->whole.dtype), &g->bytes));
    MHA_TRY(mha_scratch_alloc(context, g->t->size, sizeof *g->extents, &g->extents));
    return MHA_OK;
}

static mha_status share_extents(const gathering *g)
{
    const mha_transport *t = g->t;
    const int64_t own = g->piece.shape[g->axis];
    int64_t left = g->whole.shape[g->axis];
    MHA_TRY(mha_transport_gather(t, 0, &own, sizeof own, t->rank == 0 ? g->extents : NULL));
    MHA_TRY(mha_transport_broadcast(t, 0, g->extents, (size_t)t->size * sizeof own));
    for (int32_t r = 0; r < t->size && left >= 0; r++)
        left = g->extents[r] <= left ? left - g->extents[r] : -1;
    if (left == 0) return MHA_OK;
    return mha_fail(MHA_ERR_SHAPE,
                    "the pieces of all ranks are %s than the %lld of whole in dim %d",
                    left > 0 ? "less" : "more", (long long)g->whole.shape[g->axis], g->axis);
}

/* View the piece of a rank in the layout of messages. */
static mha_tensor block_of(const gathering *g, int32_t rank, size_t *size)
{
    int64_t shape[MHA_MAX_DIMS], before = 0, rest = 1;
    memcpy(shape, g->whole.shape, sizeof shape);
    for (int32_t r = 0; r < rank; r++) before += g->extents[r];
    for (int i = 0; i < g->whole.ndim; i++)
        if (i != g->axis) rest *= shape[i];
    shape[g->axis] = g->extents[rank];
    const size_t each = (size_t)rest * mha_dtype_size(g->whole.dtype);
    *size = (size_t)g->extents[rank] * each;
    return mha_tensor_contiguous(g->bytes + (size_t)before * each, g->whole.dtype, g->whole.ndim,
                                 shape);
}

/* Gather in a ring: each rank sends its own block to the next rank, then each
 * block that it receives. */
static mha_status gather_ring(const gathering *g)
{
    const mha_transport *t = g->t;
    for (int32_t step = 0; step < t->size - 1; step++) {
        const int32_t mine = (int32_t)(((int64_t)t->rank - step + t->size) % t->size);
        const int32_t next = (t->rank + 1) % t->size, last = (t->rank + t->size - 1) % t->size;
        size_t sizes[2];
        const mha_tensor to = block_of(g, (mine + t->size - 1) % t->size, &sizes[0]);
        const mha_tensor from = block_of(g, mine, &sizes[1]);
        mha_transfer in, out;
        MHA_TRY(t->receive(t->user, last, 0, to.data, sizes[0], &in));
        mha_status status = t->send(t->user, next, 0, from.data, sizes[1], &out);
        if (status != MHA_OK) {
            t->cancel(t->user, &in);
            return status;
        }
        status = t->wait(t->user, &in);
        if (status != MHA_OK) {
            t->cancel(t->user, &out);
            return status;
        }
        MHA_TRY(t->wait(t->user, &out));
    }
    return MHA_OK;
}

static mha_status spread(const gathering *g)
{
    mha_tensor place = g->whole;
    for (int32_t r = 0; r < g->t->size; r++) {
        size_t size;
        const mha_tensor block = block_of(g, r, &size);
        place.shape[g->axis] = g->extents[r];
        if (size > 0) MHA_TRY(mha_tensor_convert(&block, &place));
        if (size > 0)
            place.data = (char *)place.data + g->extents[r] * place.stride[g->axis] *
                                                  (int64_t)mha_dtype_size(place.dtype);
    }
    return MHA_OK;
}

/* status: the result of this rank's checks so far. */
static mha_status gather(mha_context *context, const mha_transport *t, mha_status status, int axis,
                         const mha_tensor *piece, const mha_tensor *whole)
{
    gather_common common = {.axis = axis};
    gathering g = {.t = t, .axis = axis};
    const mha_scratch_mark mark = mha_scratch_top(context);
    if (status == MHA_OK) status = check(axis, piece, whole);
    if (status == MHA_OK) {
        g.piece = *piece, g.whole = *whole;
        common.dtype = whole->dtype, common.ndim = whole->ndim;
        memcpy(common.shape, whole->shape, (size_t)whole->ndim * sizeof *common.shape);
        status = take(context, &g);
    }
    status = mha_transport_same(t, "tensor", &common, sizeof common, status);
    if (status == MHA_OK) status = share_extents(&g);
    if (status == MHA_OK) {
        size_t size;
        const mha_tensor own = block_of(&g, t->rank, &size);
        status = size > 0 ? mha_tensor_convert(&g.piece, &own) : MHA_OK;
    }
    if (status == MHA_OK) status = gather_ring(&g);
    if (status == MHA_OK) status = spread(&g);
    return mha_scratch_end(context, mark, status);
}

static mha_status check_context(const char *name, const mha_context *context,
                                const mha_transport *t)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "%s: context is NULL", name);
    return mhai_ranks_check(t);
}

mha_status mha_distributed_gather(mha_context *context, const mha_transport *transport, int axis,
                                  const mha_tensor *piece, const mha_tensor *whole)
{
    MHA_TRY(check_context("mha_distributed_gather", context, transport));
    return gather(context, transport, MHA_OK, axis, piece, whole);
}

/* ---- mixing ---------------------------------------------------------------------------------- */

typedef struct mixing {
    mha_tensor all;  /* [B,H,T,Dv], stored as [B,T,H,Dv] */
    mha_tensor x, y; /* [B T, H Dv], [B T, e] */
    mha_tensor own;  /* y as [B,T,e] */
} mixing;

/* Check this rank's arguments, and reserve scratch. */
static mha_status begin_mix(mha_context *context, const mha_tensor *heads, const mha_linear *w_o,
                            const mha_tensor *out, mixing *m)
{
    void *memory;
    int64_t rows;
    if (!w_o) return mha_fail(MHA_ERR_NULL, "mha_distributed_mix: w_o is NULL");
    MHA_TRY(mhai_tensor_check("heads", heads, MHA_F32, 4, NULL));
    const int64_t B = heads->shape[0], T = heads->shape[2], Dv = heads->shape[3];
    const int64_t K = w_o->inputs, e = w_o->outputs;
    if (Dv < 1 || K % Dv != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "heads: dim 3 is %lld, w_o has %lld inputs: expected a multiple of it",
                        (long long)Dv, (long long)K);
    MHA_TRY(mhai_tensor_check("out", out, MHA_F32, 3, (int64_t[]){B, T, -1}));
    MHA_TRY(mhai_tensor_check_last("out", out));
    MHA_TRY(mhai_tensor_check_output("out", out));
    MHA_TRY(mhai_tensor_check_disjoint("out", out, "heads", heads));
    if (!mhai_mul_i64(B, T, &rows) || !mhai_mul_i64(rows, K, &(int64_t){0}) ||
        !mhai_mul_i64(rows, e, &(int64_t){0}))
        return mha_fail(MHA_ERR_SIZE, "heads: all ranks' are beyond the address space");
    MHA_TRY(mha_scratch_alloc(context, rows * K, sizeof(float), &memory));
    m->all = mha_tensor_bthd(memory, B, T, K / Dv, Dv);
    m->x = mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){rows, K});
    MHA_TRY(mha_scratch_alloc(context, rows * e, sizeof(float), &memory));
    m->y = mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){rows, e});
    m->own = mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){B, T, e});
    return MHA_OK;
}

mha_status mha_distributed_mix(mha_context *context, const mha_transport *transport,
                               const mha_tensor *heads, const mha_linear *w_o,
                               const mha_tensor *out)
{
    mixing m = {0};
    MHA_TRY(check_context("mha_distributed_mix", context, transport));
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = begin_mix(context, heads, w_o, out, &m);
    status = gather(context, transport, status, 1, heads, &m.all);
    if (status == MHA_OK) {
        status = mha_linear_forward(context, w_o, MHA_ACTIVATION_NONE, &m.x, &m.y);
        status = gather(context, transport, status, 2, &m.own, out);
    }
    return mha_scratch_end(context, mark, status);
}
