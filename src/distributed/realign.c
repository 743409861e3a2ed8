/* See realign.h. */
#include "distributed/realign.h"

#include "attention/attn_backward_cells.h"
#include "base/checked.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

#include <string.h>

_Static_assert((int)MHA_SPLIT_ROWS == (int)MHAI_CELL_QUERIES, "sums of a chunk are one chain");

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The chunk that has a row: so many rows from its sequence's first, or up to its end. */
static mha_piece chunk_of(const mha_attention_desc *d, const mhai_split *s, int64_t row)
{
    int64_t start = 0, end = s->given.queries;
    for (int64_t b = 0; d->query_starts && b < d->sequences; b++)
        if (d->query_starts[b] <= row) start = d->query_starts[b], end = d->query_starts[b + 1];
    const int64_t begin = row - (row - start) % MHAI_CELL_QUERIES;
    return (mha_piece){begin, mhai_min_i64(end, begin + MHAI_CELL_QUERIES)};
}

/* A piece but for the rows of chunks that it shares; and the one whose first row it has, or none. */
static mha_piece cut_piece(const mha_attention_desc *d, const mhai_split *s,
                           const mhai_owned *piece, mha_piece *shared)
{
    const mha_piece head = chunk_of(d, s, piece->begin), tail = chunk_of(d, s, piece->end - 1);
    mha_piece own = {piece->begin, piece->end};
    *shared = (mha_piece){0};
    if (head.begin < own.begin) own.begin = mhai_min_i64(head.end, own.end);
    if (tail.end > own.end && tail.begin >= piece->begin) *shared = tail, own.end = tail.begin;
    return own;
}

bool mhai_realign_needed(const mha_attention_desc *d, const mhai_split *s)
{
    mha_piece shared;
    for (int64_t i = 0; i < s->query_count; i++) {
        cut_piece(d, s, &s->queries[i], &shared);
        if (shared.begin < shared.end) return true;
    }
    return false;
}

/* What ranks compute; and the parts of chunks that concern this one. Counts, or fills in. */
static int64_t list_pieces(const mha_attention_desc *d, const mhai_split *s, mhai_owned *pieces)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->query_count; i++) {
        const mhai_owned *p = &s->queries[i];
        mha_piece shared;
        const mha_piece own = cut_piece(d, s, p, &shared);
        const mhai_owned made[] = {{own.begin, own.end, p->local + own.begin - p->begin, p->rank},
                                   {shared.begin, shared.end, -1, p->rank}};
        for (int j = 0; j < 2; j++) {
            if (made[j].begin == made[j].end) continue;
            if (pieces) pieces[count] = made[j];
            count++;
        }
    }
    return count;
}

static void list_parts(const mha_attention_desc *d, mhai_realign *r, mhai_joined_part *parts)
{
    const mhai_split *s = r->s;
    r->joined_count = r->part_count = 0;
    for (int64_t i = 0; i < s->query_count; i++) {
        mha_piece shared;
        const int32_t to = s->queries[i].rank;
        cut_piece(d, s, &s->queries[i], &shared);
        for (int64_t j = i; j < s->query_count && s->queries[j].begin < shared.end; j++) {
            const mhai_owned *p = &s->queries[j];
            const int64_t begin = mhai_max_i64(p->begin, shared.begin);
            if (to != s->t->rank && p->rank != s->t->rank) continue;
            if (parts)
                parts[r->part_count] =
                    (mhai_joined_part){.joined = r->joined_count,
                                       .first = begin - shared.begin,
                                       .rows = mhai_min_i64(p->end, shared.end) - begin,
                                       .local = p->local + begin - p->begin,
                                       .from = p->rank,
                                       .to = to};
            r->part_count++;
        }
        r->joined_count += to == s->t->rank && shared.begin < shared.end;
    }
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* A chunk's tensor has so many axes, the last of them [columns] or that of the rows. */
static const struct {
    int ndim;
    bool columns;
} forms[MHAI_OVER_ALL] = {
    [MHAI_OVER_Q] = {4, true},
    [MHAI_OVER_O] = {4, true},
    [MHAI_OVER_LSE] = {3, false},
    [MHAI_OVER_O_GRADIENT] = {4, true},
    [MHAI_OVER_LSE_GRADIENT] = {3, false},
    [MHAI_OVER_PROBABILITIES] = {4, true},
    [MHAI_OVER_AVERAGE] = {3, true},
    [MHAI_OVER_DQ] = {4, true},
    [MHAI_OVER_DBIAS] = {4, true},
    [MHAI_OVER_KEEP_MASK] = {4, true},
    [MHAI_OVER_BIAS] = {4, true},
    [MHAI_OVER_GLOBAL_QUERIES] = {2, false},
    [MHAI_OVER_QUERY_DOCUMENTS] = {2, false},
};

/* A tensor with the axes [.,.,rows,columns]; those that broadcast have a stride of 0. */
static mha_tensor view_of(const mha_tensor *x, bool columns)
{
    const int first = 4 - !columns - x->ndim;
    mha_tensor made = {.data = x->data, .dtype = x->dtype, .ndim = 4, .shape = {1, 1, 1, 1}};
    for (int i = 0; i < x->ndim; i++) {
        made.shape[first + i] = x->shape[i];
        if (x->shape[i] != 1) made.stride[first + i] = x->stride[i];
    }
    return made;
}

/* A row's shape, with the axes that any rank has of an input: some may broadcast where others do not. A
 * rank without rows has no say, nor have its tensors been checked. */
static mha_status agree_on_shapes(mhai_realign *r)
{
    enum { INPUTS = MHAI_OVER_ALL - MHAI_OVER_KEEP_MASK };
    static const int axes[] = {0, 1, 3};
    int64_t(*shape)[4] = r->shape, most[INPUTS * 3];
    for (int i = 0; i < MHAI_OVER_ALL; i++)
        if (r->given.each[i] && r->s->rows > 0)
            memcpy(shape[i], view_of(r->given.each[i], forms[i].columns).shape, sizeof shape[i]);
    shape += MHAI_OVER_KEEP_MASK;
    for (int i = 0; i < INPUTS * 3; i++) most[i] = shape[i / 3][axes[i % 3]];
    MHA_TRY(mhai_ranks_most(r->s->t, most, INPUTS * 3));
    for (int i = 0; i < INPUTS * 3; i++) shape[i / 3][axes[i % 3]] = most[i];
    return MHA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static mha_status row_bytes(const mhai_realign *r, int i, int64_t *bytes)
{
    const int64_t *shape = r->shape[i];
    if (mhai_mul_i64(shape[0], shape[1], bytes) && mhai_mul_i64(*bytes, shape[3], bytes) &&
        mhai_mul_i64(*bytes, (int64_t)mha_dtype_size(r->given.each[i]->dtype), bytes))
        return MHA_OK;
    return mha_fail(MHA_ERR_SIZE, "query_pieces: a row's tensors are beyond the address space");
}

static mha_status take_part(mha_context *context, const mhai_realign *r, mhai_joined_part *p)
{
    int64_t all = 0, bytes;
    void *memory;
    for (int i = 0; i < MHAI_OVER_ALL; i++) {
        if (!r->given.each[i]) continue;
        MHA_TRY(row_bytes(r, i, &bytes));
        if (!mhai_add_i64(all, bytes, &all))
            return mha_fail(MHA_ERR_SIZE, "query_pieces: a row is beyond the address space");
    }
    MHA_TRY(mha_scratch_alloc(context, p->rows, (size_t)all, &memory));
    p->bytes = memory;
    return MHA_OK;
}

static mha_status take_joined(mha_context *context, const mhai_realign *r, int64_t rows,
                              mhai_joined *j)
{
    *j = (mhai_joined){0};
    for (int i = 0; i < MHAI_OVER_ALL; i++) {
        const mha_tensor *given = r->given.each[i];
        const int first = 4 - !forms[i].columns - forms[i].ndim;
        const int64_t shape[] = {r->shape[i][0], r->shape[i][1], rows, r->shape[i][3]};
        int64_t bytes;
        void *memory;
        if (!given) continue;
        MHA_TRY(row_bytes(r, i, &bytes));
        MHA_TRY(mha_scratch_alloc(context, rows, (size_t)bytes, &memory));
        j->own[i] = mha_tensor_contiguous(memory, given->dtype, forms[i].ndim, shape + first);
        j->over.each[i] = &j->own[i];
    }
    return MHA_OK;
}

static mha_status take_memory(mha_context *context, const mha_attention_desc *d, mhai_realign *r,
                              mhai_owned **pieces)
{
    void *memory;
    int64_t n = 0;
    list_parts(d, r, NULL);
    MHA_TRY(mha_scratch_alloc(context, r->part_count, sizeof *r->parts, &memory));
    list_parts(d, r, r->parts = memory);
    for (int64_t i = 0; i < r->part_count; i++) MHA_TRY(take_part(context, r, &r->parts[i]));
    const int64_t count = list_pieces(d, r->s, NULL);
    MHA_TRY(mha_scratch_alloc(context, count, sizeof **pieces, &memory));
    list_pieces(d, r->s, *pieces = memory);
    MHA_TRY(mha_scratch_alloc(context, r->joined_count, sizeof *r->joined, &memory));
    r->joined = memory;
    for (int64_t i = 0; i < count; i++) {
        const mhai_owned *p = &(*pieces)[i];
        if (p->rank == r->s->t->rank && p->local < 0)
            MHA_TRY(take_joined(context, r, p->end - p->begin, &r->joined[n++]));
    }
    return MHA_OK;
}

mha_status mhai_realign_make(mha_context *context, const mha_attention_desc *desc,
                             const mhai_over_queries *given, bool accumulate, mha_status status,
                             mhai_split *s, mhai_realign *r)
{
    mhai_owned *pieces = NULL;
    *r = (mhai_realign){.s = s, .given = *given, .accumulate = accumulate};
    MHA_TRY(mha_transport_agree(s->t, status));
    MHA_TRY(agree_on_shapes(r));
    status = take_memory(context, desc, r, &pieces);
    MHA_TRY(mha_transport_agree(s->t, status));
    s->query_count = list_pieces(desc, s, NULL);
    s->queries = pieces;
    return MHA_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Whether a tensor goes along, on the way to the chunk or back. */
static bool travels(const mhai_realign *r, int i, bool back)
{
    if (!r->given.each[i]) return false;
    return i == MHAI_OVER_DQ || i == MHAI_OVER_DBIAS ? back || r->accumulate : !back;
}

static size_t bytes_of(const mhai_realign *r, int i, int64_t rows)
{
    const int64_t *shape = r->shape[i];
    return (size_t)(shape[0] * shape[1] * rows * shape[3]) *
           mha_dtype_size(r->given.each[i]->dtype);
}

static size_t message_bytes(const mhai_realign *r, const mhai_joined_part *p, bool back)
{
    size_t bytes = 0;
    for (int i = 0; i < MHAI_OVER_ALL; i++)
        if (travels(r, i, back)) bytes += bytes_of(r, i, p->rows);
    return bytes;
}

/* A part's rows, tensor after tensor: from where they lie into its bytes, or out of these. */
static void pack(const mhai_realign *r, const mhai_joined_part *p, bool back, bool out)
{
    const bool in_chunk = back != out;
    char *at = p->bytes;
    for (int i = 0; i < MHAI_OVER_ALL; i++) {
        if (!travels(r, i, back)) continue;
        const mha_tensor *x = in_chunk ? &r->joined[p->joined].own[i] : r->given.each[i];
        const mha_tensor lies = view_of(x, forms[i].columns);
        const int64_t *shape = r->shape[i], row = in_chunk ? p->first : p->local;
        const mha_tensor packed = mha_tensor_contiguous(
            at, x->dtype, 4, (int64_t[]){shape[0], shape[1], p->rows, shape[3]});
        mhai_copy_rows(out ? &lies : &packed, out ? row : 0, out ? &packed : &lies, out ? 0 : row,
                       shape, p->rows);
        at += bytes_of(r, i, p->rows);
    }
}

static mha_status start(const mhai_realign *r, mhai_joined_part *p, bool back)
{
    const mha_transport *t = r->s->t;
    const int32_t source = back ? p->to : p->from, target = back ? p->from : p->to;
    const size_t bytes = message_bytes(r, p, back);
    if (source == t->rank) pack(r, p, back, false);
    if (source == target) return MHA_OK;
    MHA_TRY(source == t->rank ? t->send(t->user, target, 0, p->bytes, bytes, &p->transfer)
                              : t->receive(t->user, source, 0, p->bytes, bytes, &p->transfer));
    p->pending = true;
    return MHA_OK;
}

static mha_status exchange(const mhai_realign *r, bool back)
{
    for (int64_t i = 0; i < r->part_count; i++) MHA_TRY(start(r, &r->parts[i], back));
    for (int64_t i = 0; i < r->part_count; i++) {
        mhai_joined_part *p = &r->parts[i];
        MHA_TRY(mhai_ranks_settle(r->s->t, true, &p->transfer, &p->pending));
        if ((back ? p->from : p->to) == r->s->t->rank) pack(r, p, back, true);
    }
    return MHA_OK;
}

static mha_status move(mhai_realign *r, bool back)
{
    const mha_status status = exchange(r, back);
    for (int64_t i = 0; status != MHA_OK && i < r->part_count; i++)
        if (r->parts[i].pending) r->s->t->cancel(r->s->t->user, &r->parts[i].transfer);
    return status;
}

mha_status mhai_realign_join(mhai_realign *r)
{
    return move(r, false);
}

mha_status mhai_realign_return(mhai_realign *r)
{
    const bool any = r->given.each[MHAI_OVER_DQ] || r->given.each[MHAI_OVER_DBIAS];
    return any ? move(r, true) : MHA_OK;
}
