/* Causal attention over ranks started by mpirun, forward and backward, with pieces dealt in alternating order four
 * times.
 *
 *   mpi_attention bits                          small problems, compared with one process bit for bit
 *   mpi_attention speed N HEADS SIZE THREADS [CALLS]
 *       the time of a call at rank 0, from the start of all ranks until its rows arrive: median and minimum of CALLS
 * (5); the peak memory of a rank; a hash of all outputs, the same for any number of ranks
 *
 * Rank 0 prints one line per problem. `speed` with one rank is the baseline. */
#include "../support/backward_call.h"
#include "check.h"

#include <multihead/component.h>
#include <multihead/distributed.h>
#include <multihead/mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { FOLDS = 4 };
enum { Q, K, V, O, G, DQ, DK, DV, TENSORS };

/* All rows, or this rank's rows. */
typedef struct problem {
    int64_t rows;
    mha_tensor x[TENSORS], lse;
} problem;

static mha_tensor make(int64_t heads, int64_t rows, int64_t size)
{
    const int64_t shape[] = {1, heads, rows, size};
    float *memory = calloc((size_t)(heads * rows * size) + 1, sizeof *memory);
    CHECK(memory);
    return mha_tensor_contiguous(memory, MHA_F32, 4, shape);
}

static problem make_problem(int64_t heads, int64_t kv_heads, int64_t rows, int64_t size)
{
    problem p = {.rows = rows};
    for (int i = 0; i < TENSORS; i++)
        p.x[i] = make(i == K || i == V || i == DK || i == DV ? kv_heads : heads, rows, size);
    p.lse = make(1, heads, rows);
    p.lse.shape[1] = heads, p.lse.shape[2] = rows, p.lse.ndim = 3;
    p.lse.stride[1] = rows, p.lse.stride[2] = 1;
    return p;
}

static void free_problem(problem *p)
{
    for (int i = 0; i < TENSORS; i++) free(p->x[i].data);
    free(p->lse.data);
}

/* Numbers that depend only on their position in the whole tensor. */
static float number(int tensor, int64_t h, int64_t t, int64_t d)
{
    uint64_t z = (uint64_t)(((tensor * 64 + h) << 40) + (t << 10) + d) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    return (float)(int32_t)(z >> 32) / 1.2e9f;
}

static void fill(problem *p, const mha_piece *pieces, int64_t count)
{
    for (int i = 0; i < TENSORS; i++) {
        const mha_tensor *x = &p->x[i];
        for (int64_t h = 0; h < x->shape[1]; h++) {
            float *to = (float *)x->data + h * x->stride[1];
            for (int64_t k = 0; k < count; k++)
                for (int64_t t = pieces[k].begin; t < pieces[k].end; t++, to += x->shape[3])
                    for (int64_t d = 0; i <= G && i != O && d < x->shape[3]; d++)
                        to[d] = number(i, h, t, d);
        }
    }
}

static void check_rows(const mha_tensor *whole, const mha_tensor *part, const mha_piece *pieces,
                       int64_t count)
{
    const int64_t size = whole->ndim == 4 ? whole->shape[3] : 1;
    for (int64_t h = 0; h < whole->shape[1]; h++) {
        const float *own = (const float *)part->data + h * part->stride[1];
        for (int64_t k = 0; k < count; k++) {
            const int64_t rows = pieces[k].end - pieces[k].begin;
            CHECK(
                !memcmp((const float *)whole->data + h * whole->stride[1] + pieces[k].begin * size,
                        own, (size_t)(rows * size) * sizeof *own));
            own += rows * size;
        }
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct work {
    mha_context *context;
    mha_sequence_split split;
    mha_piece pieces[2 * FOLDS];
    mha_attention_desc desc;
    problem own;
    double (*seconds)[2]; /* time of the forward and backward pass of each call */
    int calls;
} work;

static void begin(work *w, const mha_transport *t, int64_t rows, int64_t heads, int64_t kv_heads,
                  int64_t size, int threads)
{
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = threads};
    int64_t count;
    CHECK(!mha_context_create(&desc, &w->context));
    CHECK(!mha_split_pieces(rows, t->rank, t->size, FOLDS, w->pieces, &count));
    w->split = (mha_sequence_split){.struct_size = sizeof w->split,
                                    .transport = t,
                                    .queries = rows,
                                    .keys = rows,
                                    .query_pieces = w->pieces,
                                    .key_pieces = w->pieces,
                                    .query_piece_count = count,
                                    .key_piece_count = count};
    w->desc = (mha_attention_desc){.struct_size = sizeof w->desc, .flags = MHA_ATTENTION_CAUSAL};
    int64_t here = 0;
    for (int64_t i = 0; i < count; i++) here += w->pieces[i].end - w->pieces[i].begin;
    w->own = make_problem(heads, kv_heads, here, size);
    fill(&w->own, w->pieces, count);
}

static void note_times(work *w, double forward, double backward)
{
    w->seconds = realloc(w->seconds, (size_t)(w->calls + 1) * sizeof *w->seconds);
    CHECK(w->seconds);
    w->seconds[w->calls][0] = forward;
    w->seconds[w->calls++][1] = backward;
}

static void run(work *w)
{
    problem *p = &w->own;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &p->lse};
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &p->x[DQ], .k = &p->x[DK], .v = &p->x[DV]};
    CHECK(!mha_transport_agree(w->split.transport, MHA_OK));
    const double start = now();
    CHECK(!mha_distributed_forward(w->context, &w->split, &w->desc, &p->x[Q], &p->x[K], &p->x[V],
                                   &p->x[O], &outputs));
    const double middle = now();
    CHECK(!mha_distributed_backward(w->context, &w->split,
                                    BACKWARD_CALL(&w->desc, &p->x[Q], &p->x[K], &p->x[V], &p->x[O],
                                                  &p->lse, &p->x[G], &gradients)));
    const double end = now();
    note_times(w, middle - start, end - middle);
}

/* One process with the same number of threads calls the functions without ranks. */
static void run_whole(work *w, problem *p)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &p->lse};
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &p->x[DQ], .k = &p->x[DK], .v = &p->x[DV]};
    const double start = now();
    CHECK(!mha_attention_forward(w->context, &w->desc, &p->x[Q], &p->x[K], &p->x[V], &p->x[O],
                                 &outputs));
    const double middle = now();
    CHECK(!mha_attention_backward(w->context,
                                  BACKWARD_CALL(&w->desc, &p->x[Q], &p->x[K], &p->x[V], &p->x[O],
                                                &p->lse, &p->x[G], &gradients)));
    const double end = now();
    note_times(w, middle - start, end - middle);
}

static void finish(work *w)
{
    free_problem(&w->own);
    free(w->seconds);
    mha_context_destroy(w->context);
}

static void bits(const mha_transport *t, int64_t rows, int64_t heads, int64_t kv_heads,
                 int64_t size)
{
    work w = {0};
    const mha_piece all = {0, rows};
    begin(&w, t, rows, heads, kv_heads, size, 1 + t->rank % 2);
    run(&w);
    problem whole = make_problem(heads, kv_heads, rows, size);
    fill(&whole, &all, 1);
    run_whole(&w, &whole);
    static const int outputs[] = {O, DQ, DK, DV};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        check_rows(&whole.x[outputs[i]], &w.own.x[outputs[i]], w.pieces, w.split.query_piece_count);
    check_rows(&whole.lse, &w.own.lse, w.pieces, w.split.query_piece_count);
    if (t->rank == 0)
        printf("%d ranks: %lld rows, %lld/%lld heads of %lld: the same bits\n", t->size,
               (long long)rows, (long long)heads, (long long)kv_heads, (long long)size);
    free_problem(&whole);
    finish(&w);
}

/* The report of each rank. */
typedef struct account {
    uint64_t hash;     /* sum over rows of the hash of a row and its place */
    int64_t kibibytes; /* peak */
} account;

static uint64_t hash_row(int tensor, int64_t head, int64_t row, const float *x, int64_t size)
{
    uint64_t hash = (uint64_t)(tensor + 1) << 48 ^ (uint64_t)head << 40 ^ (uint64_t)row;
    for (int64_t d = 0; d < size; d++) {
        uint32_t bits;
        memcpy(&bits, x + d, sizeof bits);
        hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static uint64_t hash_rows(const mha_tensor *x, int tensor, const mha_piece *pieces, int64_t count)
{
    const int64_t size = x->ndim == 4 ? x->shape[3] : 1;
    uint64_t sum = 0;
    for (int64_t h = 0; h < x->shape[1]; h++) {
        const float *own = (const float *)x->data + h * x->stride[1];
        for (int64_t k = 0; k < count; k++)
            for (int64_t t = pieces[k].begin; t < pieces[k].end; t++, own += size)
                sum += hash_row(tensor, h, t, own, size);
    }
    return sum;
}

static account account_of(const work *w)
{
    static const int outputs[] = {O, DQ, DK, DV};
    struct rusage used;
    CHECK(!getrusage(RUSAGE_SELF, &used));
    account a = {.kibibytes = used.ru_maxrss};
    const int64_t pieces = w->split.query_piece_count;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        a.hash += hash_rows(&w->own.x[outputs[i]], outputs[i], w->pieces, pieces);
    a.hash += hash_rows(&w->own.lse, TENSORS, w->pieces, pieces);
    return a;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const work *w, int which)
{
    double *sorted = malloc((size_t)w->calls * sizeof *sorted);
    CHECK(sorted);
    for (int i = 0; i < w->calls; i++) sorted[i] = w->seconds[i][which];
    qsort(sorted, (size_t)w->calls, sizeof *sorted, ascending);
    printf("%s %.4f s (least %.4f)", which ? ", backward" : "forward", sorted[w->calls / 2],
           sorted[0]);
    free(sorted);
}

static void speed(const mha_transport *t, int64_t rows, int64_t heads, int64_t size, int threads,
                  int calls)
{
    work w = {0};
    begin(&w, t, rows, heads, heads, size, threads);
    for (int i = 0; i < calls; i++) {
        if (t->size > 1)
            run(&w);
        else
            run_whole(&w, &w.own);
    }
    account own = account_of(&w), sum = {0};
    account *all = calloc((size_t)t->size, sizeof *all);
    CHECK(all && !mha_transport_gather(t, 0, &own, sizeof own, t->rank ? NULL : all));
    for (int r = 0; r < t->size && t->rank == 0; r++) {
        sum.hash += all[r].hash;
        if (all[r].kibibytes > sum.kibibytes) sum.kibibytes = all[r].kibibytes;
    }
    if (t->rank == 0) {
        printf("%d ranks of %d threads: ", t->size, threads);
        print_times(&w, 0);
        print_times(&w, 1);
        printf(", at most %lld MiB a rank, outputs %016llx\n", (long long)(sum.kibibytes >> 10),
               (unsigned long long)sum.hash);
    }
    free(all);
    finish(&w);
}

int main(int count, char **arguments)
{
    mha_mpi *mpi = NULL;
    const char *what = count > 1 ? arguments[1] : "";
    CHECK(!mha_mpi_start(NULL, &mpi));
    const mha_transport *t = mha_mpi_transport(mpi);
    if (!strcmp(what, "bits")) {
        bits(t, 1, 1, 1, 8);
        bits(t, 700, 2, 2, 16);
        bits(t, 1500, 4, 2, 64);
        bits(t, 5000, 3, 1, 32);
    } else if (!strcmp(what, "speed") && (count == 6 || count == 7)) {
        const int calls = count == 7 ? atoi(arguments[6]) : 5;
        CHECK(calls > 0);
        speed(t, atoll(arguments[2]), atoll(arguments[3]), atoll(arguments[4]), atoi(arguments[5]),
              calls);
    } else {
        fprintf(stderr, "mpi_attention bits | speed N HEADS SIZE THREADS [CALLS]\n");
        mha_mpi_finish(mpi);
        return 2;
    }
    mha_mpi_finish(mpi);
    return 0;
}
