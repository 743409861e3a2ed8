/* Causal attention forward over simulated hosts, started by SimGrid's smpirun (see run.py):
 *
 *   scale ordered TOKENS FOLDS [TIMELINE]   mha_distributed_forward(): real messages, with kernels
 *       that take the time of their pairs (replaced.c). Pieces are assigned in zigzag order,
 *       FOLDS times
 *   scale ring TOKENS FOLDS [TIMELINE]      a rotating ring instead: each rank begins with its own
 *       keys, and passes on its current keys while computing
 *
 * Rank 0 prints the seconds of the call, the maximum bytes received by a rank, and the bytes of
 * scratch. All ranks run alternately in one process and share static variables. */
#include "scale.h"

#include <multihead/distributed.h>
#include <multihead/mpi.h>

#include <mpi.h>
#include <simgrid/host.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

FILE *scale_timeline;

#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__))

static void fail(const char *what, int line)
{
    fprintf(stderr, "scale.c:%d: %s: %s\n", line, what, mha_error_detail());
    abort();
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

double scale_pairs(int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
    const int64_t first = most(q0, k0), last = least(q1, k1); /* rows that see some of the keys */
    const int64_t all = most(0, q1 - most(q0, k1));           /* rows that see all keys */
    const double some =
        last > first ? 0.5 * (double)(last - first) * (double)(first + 1 - k0 + last - k0) : 0;
    return some + (double)all * (double)(k1 - k0);
}

void scale_note(const char *what, double begin)
{
    int rank;
    if (!scale_timeline || MPI_Wtime() <= begin) return;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(scale_timeline, "%d %s %.9f %.9f\n", rank, what, begin, MPI_Wtime());
}

/* A product and a sum for each element of the key and of the value. Sleeps instead of calling
 * smpi_execute_flops(), after which SimGrid 3.32 traverses all messages that the host has ever
 * tested. */
void scale_compute(double pairs, int64_t heads)
{
    const double begin = MPI_Wtime();
    const double seconds =
        pairs * (double)heads * 2 * (HEAD_DIM + HEAD_DIM) / sg_host_get_speed(sg_host_self());
    struct timespec asleep = {.tv_sec = (time_t)seconds};
    if (pairs <= 0) return;
    asleep.tv_nsec = (long)(1e9 * (seconds - (double)asleep.tv_sec));
    nanosleep(&asleep, NULL);
    scale_note("compute", begin);
}

/* ---- the transport of src/mpi, with one event per wait in place of a thousand tests ---------- */

static bool waiting;

/* src/mpi is compiled with this name for MPI_Test. */
int scale_test(MPI_Request *request, int *done, MPI_Status *status);

int scale_test(MPI_Request *request, int *done, MPI_Status *status)
{
    if (!waiting) return MPI_Test(request, done, status);
    waiting = false;
    *done = 1;
    return MPI_Wait(request, status);
}

static mha_status wait_once(void *user, mha_transfer *transfer)
{
    const mha_transport *inner = mha_mpi_transport(user);
    const double begin = MPI_Wtime();
    waiting = true;
    const mha_status status = inner->wait(user, transfer);
    waiting = false;
    scale_note("wait", begin);
    return status;
}

/* ---- the problem ----------------------------------------------------------------------------- */

typedef struct work {
    mha_mpi *mpi;
    mha_transport transport;
    int64_t tokens, rows, count;
    mha_piece *pieces;
} work;

static void cut(const work *w, int rank, mha_piece *pieces)
{
    int64_t count;
    CHECK(!mha_split_pieces(w->tokens, rank, w->transport.size, w->count / 2, pieces, &count));
}

/* Rows of all ranks share the same few megabytes. */
static mha_tensor make(int64_t heads, int64_t rows)
{
    const int64_t shape[] = {1, heads, rows, HEAD_DIM};
    void *memory = SMPI_SHARED_MALLOC((size_t)(heads * rows * HEAD_DIM) * sizeof(float));
    CHECK(memory);
    return mha_tensor_contiguous(memory, MHA_F32, 4, shape);
}

static void begin(work *w, int64_t tokens, int64_t folds)
{
    CHECK(!mha_mpi_start(NULL, &w->mpi));
    w->transport = *mha_mpi_transport(w->mpi);
    w->transport.wait = wait_once;
    w->tokens = tokens;
    w->count = 2 * folds;
    w->pieces = calloc((size_t)w->count, sizeof *w->pieces);
    CHECK(w->pieces);
    cut(w, w->transport.rank, w->pieces);
    for (int64_t i = 0; i < w->count; i++) w->rows += w->pieces[i].end - w->pieces[i].begin;
}

/* ---- the schedules ------------------------------------------------------------------------- */

static void ordered(work *w, double numbers[3])
{
    const mha_context_desc one = {.struct_size = sizeof one, .num_threads = 1};
    const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    const mha_sequence_split split = {.struct_size = sizeof split,
                                      .transport = &w->transport,
                                      .queries = w->tokens,
                                      .keys = w->tokens,
                                      .query_pieces = w->pieces,
                                      .key_pieces = w->pieces,
                                      .query_piece_count = w->count,
                                      .key_piece_count = w->count};
    mha_tensor x[4];
    mha_context *context;
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs};
    mha_distributed_plan plan = {0};
    for (int i = 0; i < 4; i++) x[i] = make(i == 1 || i == 2 ? KV_HEADS : HEADS, w->rows);
    CHECK(!mha_context_create(&one, &context));
    CHECK(!mha_distributed_explain(context, &split, &desc, &x[0], &x[1], &x[2], &outputs, &plan));
    numbers[1] = plan.bytes_received;
    numbers[2] = (double)plan.scratch_bytes;
    CHECK(!mha_transport_agree(&w->transport, MHA_OK));
    const double begun = MPI_Wtime();
    CHECK(!mha_distributed_forward(context, &split, &desc, &x[0], &x[1], &x[2], &x[3], &outputs));
    numbers[0] = MPI_Wtime() - begun;
    mha_context_destroy(context);
}

static double pairs_with(const work *w, const mha_piece *keys)
{
    double pairs = 0;
    for (int64_t i = 0; i < w->count; i++)
        for (int64_t j = 0; j < w->count; j++)
            pairs += scale_pairs(w->pieces[i].begin, w->pieces[i].end, keys[j].begin, keys[j].end);
    return pairs;
}

static void ring(work *w, double numbers[3])
{
    const int size = w->transport.size, rank = w->transport.rank;
    const int64_t rows = (w->tokens + size - 1) / size + w->count * MHA_SPLIT_ROWS;
    const int64_t bytes = rows * KV_HEADS * 2 * HEAD_DIM * (int64_t)sizeof(float);
    CHECK(bytes / 4 < INT32_MAX);
    void *memory = SMPI_SHARED_MALLOC((size_t)bytes);
    mha_piece *keys = calloc((size_t)w->count, sizeof *keys);
    CHECK(memory && keys);
    CHECK(!mha_transport_agree(&w->transport, MHA_OK));
    const double begun = MPI_Wtime();
    for (int step = 0; step < size; step++) {
        MPI_Request requests[2];
        const bool last = step == size - 1;
        if (!last)
            MPI_Isend(memory, (int)(bytes / 4), MPI_FLOAT, (rank + 1) % size, 0, MPI_COMM_WORLD,
                      &requests[0]);
        if (!last)
            MPI_Irecv(memory, (int)(bytes / 4), MPI_FLOAT, (rank + size - 1) % size, 0,
                      MPI_COMM_WORLD, &requests[1]);
        cut(w, (rank - step + size) % size, keys);
        scale_compute(pairs_with(w, keys), HEADS);
        const double waited = MPI_Wtime();
        if (!last) MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        scale_note("wait", waited);
    }
    numbers[0] = MPI_Wtime() - begun;
    numbers[1] = (double)bytes * (size - 1);
    numbers[2] = 2.0 * (double)bytes;
    free(keys);
}

int main(int count, char **arguments)
{
    work w = {0};
    double own[3] = {0}, all[3];
    if (count < 4) {
        fprintf(stderr, "scale ordered|ring TOKENS FOLDS [TIMELINE]\n");
        return 2;
    }
    if (count > 4 && !scale_timeline) scale_timeline = fopen(arguments[4], "w");
    begin(&w, atoll(arguments[2]), atoll(arguments[3]));
    if (!strcmp(arguments[1], "ring"))
        ring(&w, own);
    else
        ordered(&w, own);
    MPI_Allreduce(own, all, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (w.transport.rank == 0) printf("%.6f %.0f %.0f\n", all[0], all[1], all[2]);
    if (w.transport.rank == 0 && scale_timeline) fflush(scale_timeline);
    mha_mpi_finish(w.mpi);
    return 0;
}
