/* mha_head_measures: creation, destruction, and input.
 *
 * The rows of a layer are added to separate sums (maps). After the last row, these are added to the
 * sums over all texts, so an unfinished text has no effect. Heads are divided among the threads.
 * Each sum has one owner thread, which adds its terms in a fixed order. Sums over texts are exact,
 * so texts can be added, and objects merged, in any order. */
#include "analysis/head_measures.h"
#include "analysis/head_corpus.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <math.h>
#include <string.h>

enum { FARTHEST_OFFSET = 8, MOST_OFFSETS = 64, NEAR_TOKENS = 2, MOST_NEAR = 1024, RARE_RANK = 500 };

/* ---- creation and destruction ---------------------------------------------------------------- */

static int64_t heads_of(const mha_head_measures *m)
{
    return m->first_head ? m->first_head[m->layers] : 0;
}

static int64_t ats(const mha_head_measures *m)
{
    return 2 * m->offsets + 1;
}

/* Number of doubles per head that join() sums. */
int64_t mhai_head_measures_exacts(const mha_head_measures *m)
{
    return 2 * MHA_MEASURES + 2 * ats(m) + 6 * m->relations;
}

static int64_t far_links(const mha_head_measures *m)
{
    return m->layers * 2 * m->relations * (2 * MHAI_HEAD_FAR_LINK + 1);
}

/* Arrays of fixed size, except first_head. */
#define MEASURE_ARRAYS(X)                                \
    X(kept, heads_of(m))                                 \
    X(exact, heads_of(m) * mhai_head_measures_exacts(m)) \
    X(maps, m->most_heads)                               \
    X(all_at, heads_of(m) * ats(m))                      \
    X(all_links, heads_of(m) * 2 * m->relations)         \
    X(link_offsets, far_links(m))                        \
    X(link_count, m->layers * 2 * m->relations)          \
    X(windows, m->layers)                                \
    X(done, m->layers)

static void give_names(mha_head_measures *m)
{
    for (int64_t r = 0; m->names && r < m->relations; r++)
        if (m->names[r]) mhai_give(&m->allocator, m->names[r], (int64_t)strlen(m->names[r]) + 1, 1);
    mhai_give(&m->allocator, m->names, m->relations, sizeof *m->names);
}

void mha_head_measures_destroy(mha_head_measures *m)
{
    if (!m) return;
    mhai_head_text_close(m);
    if (m->corpus) m->corpus->measures = NULL;
    if (m->map_memory) m->allocator.release(m->allocator.user, m->map_memory, m->map_bytes);
    give_names(m);
#define GIVE(name, count) mhai_give(&m->allocator, m->name, count, sizeof *m->name);
    MEASURE_ARRAYS(GIVE)
#undef GIVE
    mhai_give(&m->allocator, m->first_head, m->layers + 1,
              sizeof *m->first_head); /* the other calls use heads_of() */
    mha_allocator allocator = m->allocator;
    allocator.release(allocator.user, m, sizeof *m);
}

int64_t mha_head_measures_heads(const mha_head_measures *m, int64_t layer)
{
    if (!m || layer < 0 || layer >= m->layers) return -1;
    return m->first_head[layer + 1] - m->first_head[layer];
}

const char *mha_head_measures_name(const mha_head_measures *m, int64_t relation)
{
    return m && relation >= 0 && relation < m->relations ? m->names[relation] : NULL;
}

static mha_status check_desc(mha_head_measures_desc *d)
{
    MHA_TRY(mhai_check_flags("mha_head_measures_desc", d->flags, 0));
    if (d->farthest_offset == 0) d->farthest_offset = FARTHEST_OFFSET;
    if (d->near_tokens == 0) d->near_tokens = NEAR_TOKENS;
    if (d->rare_rank == 0) d->rare_rank = RARE_RANK;
    MHA_TRY(mhai_check_range("mha_head_measures_desc: layers", d->layers, 1, INT32_MAX));
    if (!d->heads) return mha_fail(MHA_ERR_NULL, "mha_head_measures_desc: heads is NULL");
    MHA_TRY(mhai_check_range("mha_head_measures_desc: farthest_offset", d->farthest_offset, 1,
                             MOST_OFFSETS));
    MHA_TRY(mhai_check_range("mha_head_measures_desc: near_tokens", d->near_tokens, 1, MOST_NEAR));
    if (d->rare_rank < -1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_measures_desc: rare_rank is %lld, expected a rank, or -1 for any",
                        (long long)d->rare_rank);
    if (d->relations < 0 || d->relations > INT16_MAX || (d->relations > 0 && !d->names))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_measures_desc: %lld relations%s; expected 0..%d with names",
                        (long long)d->relations, d->names ? "" : " without names", INT16_MAX);
    return MHA_OK;
}

static mha_status count_heads(mha_head_measures *m, const int64_t *heads)
{
    m->first_head = mhai_take(&m->allocator, m->layers + 1, sizeof *m->first_head);
    if (!m->first_head) return MHA_NO_MEMORY("mha_head_measures");
    for (int64_t l = 0; l < m->layers; l++) {
        MHA_TRY(mhai_check_entry("heads", l, heads[l], 0, INT16_MAX));
        m->first_head[l + 1] = m->first_head[l] + heads[l];
        m->most_heads = mhai_max_i64(m->most_heads, heads[l]);
    }
    return MHA_OK;
}

static mha_status copy_names(mha_head_measures *m, const char *const *names)
{
    m->names = mhai_take(&m->allocator, m->relations, sizeof *m->names);
    if (!m->names) return MHA_NO_MEMORY("mha_head_measures");
    for (int64_t r = 0; r < m->relations; r++) {
        if (!names[r]) return mha_fail(MHA_ERR_NULL, "names[%lld] is NULL", (long long)r);
        m->names[r] = mhai_take(&m->allocator, (int64_t)strlen(names[r]) + 1, 1);
        if (!m->names[r]) return MHA_NO_MEMORY("mha_head_measures");
        memcpy(m->names[r], names[r], strlen(names[r]) + 1);
    }
    return MHA_OK;
}

static mha_status take_sums(mha_head_measures *m)
{
    const int64_t heads = heads_of(m);
#define TAKE(name, count)                                       \
    m->name = mhai_take(&m->allocator, count, sizeof *m->name); \
    if (!m->name) return MHA_NO_MEMORY("mha_head_measures");
    MEASURE_ARRAYS(TAKE)
#undef TAKE
    for (int64_t h = 0; h < heads; h++) {
        m->kept[h].at = m->all_at + h * ats(m);
        m->kept[h].links = m->all_links + h * 2 * m->relations;
        m->kept[h].details.column_text = m->kept[h].details.cut_text = -1;
    }
    return MHA_OK;
}

mha_status mha_head_measures_create(mha_context *context, const mha_head_measures_desc *desc,
                                    mha_head_measures **measures)
{
    mha_head_measures_desc d;
    mha_status status;
    MHA_NEED("mha_head_measures_create", context, desc, measures);
    MHA_TRY(mhai_struct_copy("mha_head_measures_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_desc(&d));
    const mha_allocator a = mha_context_allocator(context);
    mha_head_measures *m = a.alloc(a.user, sizeof *m, _Alignof(mha_head_measures));
    if (!m) return MHA_NO_MEMORY("mha_head_measures");
    *m = (mha_head_measures){.context = context,
                             .allocator = a,
                             .layers = d.layers,
                             .offsets = d.farthest_offset,
                             .near_tokens = d.near_tokens,
                             .rare_rank = d.rare_rank,
                             .relations = d.relations,
                             .layer = -1,
                             .inputs_layer = -1,
                             .signed_layer = -1};
    MHA_TRY_GOTO(count_heads(m, d.heads), fail);
    MHA_TRY_GOTO(copy_names(m, d.names), fail);
    MHA_TRY_GOTO(take_sums(m), fail);
    *measures = m;
    return MHA_OK;
fail:
    mha_head_measures_destroy(m);
    return status;
}

/* ---- texts ----------------------------------------------------------------------------------- */

mha_status mha_head_measures_begin(mha_head_measures *m, const mha_heads_text *text)
{
    mha_status status;
    MHA_NEED_AS("mha_head_measures_begin", "measures, text", m, text);
    if (m->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures_begin: a text is open; end it first");
    MHA_TRY(mhai_head_text_open(m, text));
    if (m->corpus && (status = mhai_corpus_begin(m->corpus, &m->text.given)) != MHA_OK) {
        mhai_head_text_close(m);
        return status;
    }
    m->layer = m->inputs_layer = m->signed_layer = -1;
    memset(m->windows, 0, (size_t)m->layers * sizeof *m->windows);
    memset(m->done, 0, (size_t)m->layers * sizeof *m->done);
    return MHA_OK;
}

static mha_status check_layer(const mha_head_measures *m, int64_t layer)
{
    if (!m) return mha_fail(MHA_ERR_NULL, "mha_head_measures: is NULL");
    if (!m->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures: no text is open; begin one");
    if (layer < 0 || layer >= m->layers)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures: layer %lld, expected 0..%lld",
                        (long long)layer, (long long)m->layers - 1);
    if (m->done[layer] || (m->layer >= 0 && m->layer != layer))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures: layer %lld %s", (long long)layer,
                        m->done[layer] ? "has all its rows" : "begins before another is finished");
    return MHA_OK;
}

/* Check that the layer can start. */
static mha_status check_fresh(const char *function, const mha_head_measures *m, int64_t layer)
{
    MHA_TRY(check_layer(m, layer));
    if (m->layer != layer) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "%s: layer %lld has begun", function, (long long)layer);
}

mha_status mha_head_measures_window(mha_head_measures *m, int64_t layer,
                                    const mha_attention_desc *desc)
{
    mha_attention_desc d = {0};
    MHA_TRY(check_fresh("mha_head_measures_window", m, layer));
    if (desc)
        MHA_TRY(mhai_struct_copy("mha_attention_desc", &d, sizeof d,
                                 offsetof(mha_attention_desc, left_keys), desc));
    m->windows[layer] = (mhai_head_window){.on = d.flags & MHA_ATTENTION_WINDOW && !d.global_keys &&
                                                 !d.global_queries,
                                           .causal = d.flags & MHA_ATTENTION_CAUSAL,
                                           .left = d.left_keys,
                                           .right = d.right_keys,
                                           .sinks = d.sink_keys};
    return MHA_OK;
}

mha_status mha_head_measures_inputs(mha_head_measures *m, int64_t layer, const mha_tensor *x)
{
    MHA_TRY(check_fresh("mha_head_measures_inputs", m, layer));
    m->inputs_layer = -1;
    if (!x) return MHA_OK;
    MHA_TRY(mhai_tensor_check("x", x, MHA_F32, 2, (int64_t[]){m->text.given.keys, -1}));
    m->inputs = *x;
    m->inputs_layer = layer;
    return MHA_OK;
}

mha_status mha_head_measures_signed(mha_head_measures *m, int64_t layer)
{
    MHA_TRY(check_fresh("mha_head_measures_signed", m, layer));
    m->signed_layer = layer;
    return MHA_OK;
}

/* Count the offsets of links. These depend on the keys that the layer sees, not on heads. */
static void count_offsets(mha_head_measures *m, int64_t layer)
{
    const mhai_head_text *x = &m->text;
    for (int64_t n = 0; n < x->probes_count; n++) {
        const mhai_head_probe *probe = &x->probes[n];
        const int64_t slot = 2 * layer * m->relations + probe->slot;
        if (!mhai_head_text_eligible(x, &m->windows[layer], probe)) continue;
        m->link_count[slot]++;
        if (probe->offset < -MHAI_HEAD_FAR_LINK || probe->offset > MHAI_HEAD_FAR_LINK) continue;
        m->link_offsets[slot * (2 * MHAI_HEAD_FAR_LINK + 1) + probe->offset + MHAI_HEAD_FAR_LINK]++;
    }
}

mha_status mha_head_measures_end(mha_head_measures *m)
{
    if (!m) return mha_fail(MHA_ERR_NULL, "mha_head_measures_end: measures is NULL");
    if (!m->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures_end: no text is open; begin one");
    const int64_t layer = m->layer, row = m->row, rows = m->text.given.queries;
    for (int64_t l = 0; l < m->layers; l++)
        if (m->done[l]) count_offsets(m, l);
    if (m->corpus) mhai_corpus_end(m->corpus);
    mhai_head_text_close(m);
    m->texts++;
    m->layer = m->inputs_layer = m->signed_layer = -1;
    if (layer >= 0)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_head_measures_end: layer %lld received %lld of %lld rows and is excluded",
            (long long)layer, (long long)row, (long long)rows);
    return MHA_OK;
}

/* ---- the current layer's sums ---------------------------------------------------------------- */

static size_t lay_out(const mha_head_measures *m, unsigned char *memory, mhai_head_map *map)
{
    const int64_t S = m->text.given.keys, diagonals = S + m->text.given.queries;
    mhai_carver c = {memory, 0};
    *map = (mhai_head_map){0};
    map->own.at = mhai_carve(&c, ats(m), sizeof *map->own.at);
    map->own.links = mhai_carve(&c, 2 * m->relations, sizeof *map->own.links);
    map->column = mhai_carve(&c, S, sizeof *map->column);
    map->column_even = mhai_carve(&c, S, sizeof *map->column_even);
    map->column_rows = mhai_carve(&c, S, sizeof *map->column_rows);
    map->diagonal = mhai_carve(&c, diagonals, sizeof *map->diagonal);
    map->diagonal_rows = mhai_carve(&c, diagonals, sizeof *map->diagonal_rows);
    map->word = mhai_carve(&c, m->text.probes_count > 0 ? m->text.words : 0, sizeof *map->word);
    return c.used;
}

static mha_status begin_layer(mha_head_measures *m, int64_t layer)
{
    mhai_head_map sized;
    const int64_t heads = m->first_head[layer + 1] - m->first_head[layer];
    const size_t each = lay_out(m, NULL, &sized);
    size_t bytes;
    if (!mhai_mul_size(each, (size_t)heads, &bytes)) return MHA_NO_MEMORY("mha_head_measures");
    if (bytes > m->map_bytes) {
        void *grown = m->allocator.alloc(m->allocator.user, bytes, 64);
        if (!grown)
            return mha_fail(MHA_ERR_NOMEM, "mha_head_measures: cannot allocate %zu bytes", bytes);
        if (m->map_memory) m->allocator.release(m->allocator.user, m->map_memory, m->map_bytes);
        m->map_memory = grown;
        m->map_bytes = bytes;
    }
    if (bytes > 0) memset(m->map_memory, 0, bytes);
    for (int64_t h = 0; h < heads; h++)
        lay_out(m, (unsigned char *)m->map_memory + (size_t)h * each, &m->maps[h]);
    if (m->corpus) mhai_corpus_layer(m->corpus, &m->text, layer);
    for (int64_t h = 0; m->corpus && h < heads; h++) m->maps[h].seen = &m->corpus->seen[h];
    m->layer = layer;
    m->row = 0;
    return MHA_OK;
}

/* Add to the exact sums of a head, in order. */
typedef struct adder {
    mhai_head_merge *pass;
    mhai_exact *to;
    const mhai_exact *from; /* NULL: add the doubles */
} adder;

static void add(adder *x, double *rounded, double more)
{
    if (!x->pass->adds) return;
    if (x->from)
        mhai_exact_join(x->to, x->from++);
    else
        mhai_exact_add(x->to, more);
    *rounded = mhai_exact_value(x->to++);
}

void mhai_head_merge_counts(mhai_head_merge *pass, int64_t *to, const int64_t *from, int64_t count,
                            int64_t most)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t sum;
        pass->fits &= mhai_add_i64(to[i], from[i], &sum) && sum <= most && sum >= -most;
        if (pass->adds) to[i] = sum;
    }
}

static void add_count(const adder *x, int64_t *to, int64_t from)
{
    mhai_head_merge_counts(x->pass, to, &from, 1, MHAI_COUNT_MOST);
}

/* Keep the text with the highest score. Among equal scores, keep the earlier one. */
static void join_details(mhai_head_kept *to, const mhai_head_kept *from, int64_t texts)
{
    mha_head_details *d = &to->details;
    const mha_head_details *f = &from->details;
    if (f->column_text >= 0 && (d->column_text < 0 || from->best_column > to->best_column)) {
        to->best_column = from->best_column;
        d->column_text = texts + f->column_text;
        d->columns = f->columns;
        memcpy(d->column, f->column, sizeof d->column);
    }
    if (f->cut_text >= 0 && (d->cut_text < 0 || from->best_cut > to->best_cut)) {
        to->best_cut = from->best_cut;
        d->cut_text = texts + f->cut_text;
        d->cut = f->cut;
    }
}

/* Add sums to head h. exact: the exact sums behind the doubles in from, or NULL. texts: number of
 * texts before those of `from`. */
static void join(mha_head_measures *m, int64_t h, const mhai_head_kept *from,
                 const mhai_exact *exact, int64_t texts, mhai_head_merge *pass)
{
    mhai_head_kept *to = &m->kept[h];
    adder x = {pass, m->exact + h * mhai_head_measures_exacts(m), exact};
    for (int n = 0; n < MHA_MEASURES; n++) {
        add(&x, &to->sum[n].value, from->sum[n].value);
        add(&x, &to->sum[n].chance, from->sum[n].chance);
        add_count(&x, &to->sum[n].rows, from->sum[n].rows);
    }
    for (int64_t n = 0; n < ats(m); n++) {
        add(&x, &to->at[n].mass, from->at[n].mass);
        add(&x, &to->at[n].chance, from->at[n].chance);
        add_count(&x, &to->at[n].rows, from->at[n].rows);
        add_count(&x, &to->at[n].largest, from->at[n].largest);
    }
    for (int64_t n = 0; n < 2 * m->relations; n++) {
        add(&x, &to->links[n].mass, from->links[n].mass);
        add(&x, &to->links[n].chance, from->links[n].chance);
        add(&x, &to->links[n].share, from->links[n].share);
        add_count(&x, &to->links[n].hits, from->links[n].hits);
        add_count(&x, &to->links[n].links, from->links[n].links);
    }
    if (pass->adds) join_details(to, from, texts);
}

typedef struct finish_job {
    mha_head_measures *m;
    unsigned char *memory;
    size_t bytes;
} finish_job;

static void finish_head(void *argument, int64_t h, int worker)
{
    const finish_job *job = argument;
    mha_head_measures *m = job->m;
    mhai_head_finish_map(m, &m->maps[h], job->memory + (size_t)worker * job->bytes);
    join(m, m->first_head[m->layer] + h, &m->maps[h].own, NULL, 0,
         &(mhai_head_merge){.adds = true});
    if (m->corpus)
        mhai_corpus_map(m->corpus, &m->text, m->layer, m->first_head[m->layer] + h, &m->maps[h]);
}

/* ---- merging --------------------------------------------------------------------------------- */

static mha_status check_alike(const mha_head_measures *m, const mha_head_measures *from)
{
    bool alike = m->layers == from->layers && m->offsets == from->offsets &&
                 m->near_tokens == from->near_tokens && m->rare_rank == from->rare_rank &&
                 m->relations == from->relations;
    for (int64_t l = 0; alike && l < m->layers; l++)
        alike = m->first_head[l + 1] == from->first_head[l + 1];
    for (int64_t r = 0; alike && r < m->relations; r++)
        alike = strcmp(m->names[r], from->names[r]) == 0;
    if (alike) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_head_measures_merge: the two were created from different descriptions");
}

/* texts: number of texts in m before those of `from`. */
static void merge_sums(mha_head_measures *m, const mha_head_measures *from, int64_t texts,
                       mhai_head_merge *pass)
{
    for (int64_t h = 0; h < heads_of(m); h++)
        join(m, h, &from->kept[h], from->exact + h * mhai_head_measures_exacts(m), texts, pass);
    mhai_head_merge_counts(pass, m->link_offsets, from->link_offsets, far_links(m),
                           MHAI_COUNT_MOST);
    mhai_head_merge_counts(pass, m->link_count, from->link_count, m->layers * 2 * m->relations,
                           MHAI_COUNT_MOST);
}

static mha_status merge(mha_head_measures *m, const mha_head_measures *from, int64_t texts)
{
    if (m == from || m->open || from->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_measures_merge: %s",
                        m == from ? "both are the same object" : "a text is open; end it first");
    MHA_TRY(check_alike(m, from));
    mhai_head_merge pass = {.fits = texts <= MHAI_COUNT_MOST - from->texts};
    merge_sums(m, from, texts, &pass);
    if (!pass.fits) return mha_fail(MHA_ERR_SIZE, "mha_head_measures_merge: more than 2^53 rows");
    pass.adds = true;
    merge_sums(m, from, texts, &pass);
    m->texts = texts + from->texts;
    return MHA_OK;
}

mha_status mha_head_measures_merge(mha_head_measures *m, const mha_head_measures *from)
{
    MHA_NEED_AS("mha_head_measures_merge", "measures, from", m, from);
    return merge(m, from, m->texts);
}

mha_status mha_head_measures_merge_layers(mha_head_measures *m, const mha_head_measures *from)
{
    MHA_NEED_AS("mha_head_measures_merge_layers", "measures, from", m, from);
    if (m->texts != from->texts)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_measures_merge_layers: the objects have %lld and %lld texts; "
                        "expected equal numbers",
                        (long long)m->texts, (long long)from->texts);
    return merge(m, from, 0);
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct row_job {
    mha_head_measures *m;
    const mha_tensor *p;
    const mhai_head_fact *facts;
    double *row; /* [workers][2][S]: the row as given, and as fractions of its mass */
    bool signs;
    int64_t *fault; /* [H] 1 + r S + j for an invalid weight in row r at key j, otherwise 0 */
} row_job;

static void read_row(const mha_tensor *p, int64_t h, int64_t r, double *row)
{
    const int64_t start = h * p->stride[0] + r * p->stride[1], step = p->stride[2];
    const int64_t keys = p->shape[2];
    if (p->dtype == MHA_F64) {
        const double *from = (const double *)p->data + start;
        for (int64_t j = 0; j < keys; j++) row[j] = from[j * step];
    } else {
        const float *from = (const float *)p->data + start;
        for (int64_t j = 0; j < keys; j++) row[j] = (double)from[j * step];
    }
}

static void check_head(void *argument, int64_t h, int worker)
{
    const row_job *job = argument;
    const int64_t S = job->p->shape[2];
    double *row = job->row + 2 * worker * S;
    for (int64_t r = 0; r < job->p->shape[1]; r++) {
        double sum = 0;
        read_row(job->p, h, r, row);
        for (int64_t j = 0; j < S; j++) {
            sum += row[j];
            if (row[j] == 0) continue;
            const bool valid = job->signs ? isfinite(row[j]) : row[j] > 0 && sum <= 1.001;
            if (!valid || !job->facts[r].visible[j]) {
                job->fault[h] = 1 + r * S + j;
                return;
            }
        }
    }
}

static mha_status report_fault(const row_job *job, int64_t row)
{
    const mha_tensor *p = job->p;
    for (int64_t h = 0; h < p->shape[0]; h++) {
        if (job->fault[h] == 0) continue;
        const int64_t r = (job->fault[h] - 1) / p->shape[2], j = (job->fault[h] - 1) % p->shape[2];
        read_row(p, h, r, job->row);
        const double a = job->row[j];
        return mha_fail(
            MHA_ERR_NUMERIC, "head %lld, row %lld: %s (weight %g of key %lld)", (long long)h,
            (long long)(row + r),
            job->signs && !isfinite(a) ? "a weight of a signed map is not finite"
            : !job->signs && (!(a >= 0) || !isfinite(a))
                ? "a weight is negative or not finite; are "
                  "these scores before softmax?"
            : !job->facts[r].visible[j]
                ? "the text's description or the layer's window hides this key; is the text causal?"
                : "weights sum to more than 1; are these "
                  "scores before softmax?",
            a, (long long)j);
    }
    return MHA_OK;
}

static const double *take_sizes(const double *row, int64_t keys, double *sizes)
{
    double sum = 0;
    for (int64_t j = 0; j < keys; j++) sum += fabs(row[j]);
    for (int64_t j = 0; j < keys; j++) sizes[j] = sum > 0 ? fabs(row[j]) / sum : 0;
    return sizes;
}

static void add_head(void *argument, int64_t h, int worker)
{
    const row_job *job = argument;
    const int64_t S = job->p->shape[2];
    double *row = job->row + worker * 2 * S;
    for (int64_t r = 0; r < job->p->shape[1]; r++) {
        read_row(job->p, h, r, row);
        mhai_head_row_add(job->m, &job->facts[r], job->signs ? take_sizes(row, S, row + S) : row,
                          row, &job->m->maps[h]);
    }
}

/* Memory for all rows, allocated before the first row is counted. */
typedef struct row_memory {
    mhai_head_fact *facts;
    double *rows;
    int64_t *faults;
    void *finish;
    size_t finish_bytes;
} row_memory;

static mha_status take_row_memory(mha_head_measures *m, int64_t row, const mha_tensor *p,
                                  row_memory *memory)
{
    const int64_t threads = mha_context_threads(m->context), S = p->shape[2];
    memory->finish_bytes = (size_t)mhai_round_up((int64_t)mhai_head_finish_bytes(m), 64);
    MHA_TRY(mhai_head_facts_make(m, row, p->shape[1], &memory->facts));
    MHA_TRY(mha_scratch_alloc(m->context, 2 * threads * S, sizeof(double), &memory->rows));
    MHA_TRY(mha_scratch_zeros(m->context, p->shape[0], sizeof(int64_t), &memory->faults));
    return mha_scratch_alloc(m->context, threads, memory->finish_bytes, &memory->finish);
}

static mha_status add_rows(mha_head_measures *m, int64_t row, const mha_tensor *p)
{
    row_memory memory;
    MHA_TRY(take_row_memory(m, row, p, &memory));
    row_job job = {.m = m,
                   .p = p,
                   .facts = memory.facts,
                   .row = memory.rows,
                   .signs = m->signed_layer == m->layer,
                   .fault = memory.faults};
    mha_parallel_for(m->context, p->shape[0], check_head, &job);
    MHA_TRY(report_fault(&job, row));
    mha_parallel_for(m->context, p->shape[0], add_head, &job);
    m->row += p->shape[1];
    if (m->row < m->text.given.queries) return MHA_OK;
    finish_job finish = {.m = m, .memory = memory.finish, .bytes = memory.finish_bytes};
    mha_parallel_for(m->context, p->shape[0], finish_head, &finish);
    m->done[m->layer] = true;
    m->layer = -1;
    return MHA_OK;
}

mha_status mha_head_measures_rows(mha_head_measures *m, int64_t layer, int64_t row,
                                  const mha_tensor *p)
{
    MHA_TRY(check_layer(m, layer));
    const int64_t heads = m->first_head[layer + 1] - m->first_head[layer];
    const int64_t next = m->layer == layer ? m->row : 0, rows = m->text.given.queries;
    if (!p) return mha_fail(MHA_ERR_NULL, "mha_head_measures_rows: p is NULL");
    MHA_TRY(mhai_tensor_check("p", p, p->dtype == MHA_F64 ? MHA_F64 : MHA_F32, 3,
                              (int64_t[]){heads, -1, m->text.given.keys}));
    if (row != next || p->shape[1] > rows - row)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_measures_rows: rows %lld..%lld of %lld, expected to continue at "
                        "row %lld",
                        (long long)row, (long long)(row + p->shape[1]) - 1, (long long)rows,
                        (long long)next);
    if (p->shape[1] == 0) return MHA_OK;
    const bool fresh = m->layer < 0;
    if (fresh) MHA_TRY(begin_layer(m, layer));
    const mha_scratch_mark mark = mha_scratch_top(m->context);
    const mha_status status = add_rows(m, row, p);
    if (status != MHA_OK && fresh) m->layer = -1;
    return mha_scratch_end(m->context, mark, status);
}

typedef struct feed {
    mha_head_measures *m;
    int64_t layer;
} feed;

static mha_status feed_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const feed *to = user;
    (void)b;
    return mha_head_measures_rows(to->m, to->layer, row, p);
}

mha_status mha_head_measures_attention(mha_head_measures *m, int64_t layer,
                                       const mha_attention_desc *desc, const mha_tensor *q,
                                       const mha_tensor *k)
{
    MHA_TRY(check_layer(m, layer));
    if (q && q->ndim > 0 && q->shape[0] != 1)
        return mha_fail(MHA_ERR_SHAPE,
                        "mha_head_measures_attention: q: dim 0 is %lld, expected one sequence",
                        (long long)q->shape[0]);
    MHA_TRY(mha_head_measures_window(m, layer, desc));
    return mha_attention_visit_rows(m->context, desc, q, k, 0, feed_rows, &(feed){m, layer});
}
