/* Maps of gated delta nets: the exact map, and a map that ignores erasure by later tokens.
 *
 *   cc -O2 -std=c17 -Iinclude bench/delta_maps.c -Lbuild -lmultihead-model -lmultihead -lm \
 *      -Wl,-rpath,$PWD/build -o build/delta_maps
 *   build/delta_maps                       random keys: 4 heads of 32, 511 tokens
 *   build/delta_maps FOLDER IDS [COUNT]    a model, texts of COUNT (96) token ids in a file
 *
 * Prints for ranges of positions t, as means over rows and heads:
 *
 *   erase ignored   sum_j |N[t,j] - M[t,j]| / sum_j |M[t,j]|, N = scale (Q K^T * G) diag(b)
 *   of the output   |N v - o| / |o|
 *   exact map       |M v - o| / |o|, o from mha_recurrent_forward()
 *   negative        sum of |M[t,j]| where M is negative / sum_j |M[t,j]| */
#include <multihead/checkpoint.h>
#include <multihead/recurrent.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 12, COLUMNS = 4, HEADS = 4, SIZE = 32, TOKENS = 511 };

typedef struct totals {
    double sum[RANGES][COLUMNS];
    long rows[RANGES];
} totals;

typedef struct problem {
    mha_context *context;
    const mha_tensor *q, *k, *v, *log_decay, *strength;
    int64_t H, T, Dv;
} problem;

static void *take(int64_t count)
{
    void *memory = calloc((size_t)count, sizeof(float));
    if (!memory) exit(1);
    return memory;
}

static mha_status copy_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const mha_tensor *to = user;
    (void)b;
    for (int64_t h = 0; h < p->shape[0]; h++)
        for (int64_t r = 0; r < p->shape[1]; r++)
            memcpy((float *)to->data + (h * to->shape[1] + row + r) * to->shape[2],
                   (const float *)p->data + h * p->stride[0] + r * p->stride[1],
                   (size_t)p->shape[2] * sizeof(float));
    return MHA_OK;
}

static mha_status make_map(const problem *x, bool delta, float *map)
{
    const mha_recurrent_desc desc = {.struct_size = sizeof desc,
                                     .flags = delta ? MHA_RECURRENT_DELTA : 0,
                                     .log_decay = x->log_decay,
                                     .strength = x->strength};
    mha_tensor to = mha_tensor_contiguous(map, MHA_F32, 3, (const int64_t[]){x->H, x->T, x->T});
    return mha_recurrent_visit_rows(x->context, &desc, x->q, x->k, x->H, 0, copy_rows, &to);
}

static double value(const problem *x, int64_t h, int64_t t, int64_t c)
{
    const mha_tensor *v = x->v;
    return (double)((const float *)
                        v->data)[h / (x->H / v->shape[1]) * v->stride[1] + t * v->stride[2] + c];
}

/* |row v - o| */
static double distance(const problem *x, int64_t h, int64_t t, const float *row, const float *o)
{
    double squares = 0;
    for (int64_t c = 0; c < x->Dv; c++) {
        double sum = 0;
        for (int64_t j = 0; j <= t; j++) sum += (double)row[j] * value(x, h, j, c);
        squares += (sum - (double)o[c]) * (sum - (double)o[c]);
    }
    return sqrt(squares);
}

static void add_row(const problem *x, int64_t h, int64_t t, const float *exact,
                    const float *ignored, const float *o, totals *to)
{
    int range = 0;
    double size = 0, error = 0, below = 0, length = 0;
    while ((int64_t)2 << range <= t + 1) range++;
    for (int64_t j = 0; j <= t; j++) {
        size += fabs((double)exact[j]);
        error += fabs((double)ignored[j] - (double)exact[j]);
        if (exact[j] < 0) below -= (double)exact[j];
    }
    for (int64_t c = 0; c < x->Dv; c++) length += (double)o[c] * (double)o[c];
    length = sqrt(length);
    if (!(size > 0) || !(length > 0)) return;
    const double found[COLUMNS] = {error / size, distance(x, h, t, ignored, o) / length,
                                   distance(x, h, t, exact, o) / length, below / size};
    for (int n = 0; n < COLUMNS; n++) to->sum[range][n] += found[n];
    to->rows[range]++;
}

static mha_status compare(const problem *x, totals *to)
{
    const int64_t T = x->T;
    float *exact = take(x->H * T * T), *ignored = take(x->H * T * T), *out = take(x->H * T * x->Dv);
    const mha_tensor o =
        mha_tensor_contiguous(out, MHA_F32, 4, (const int64_t[]){1, x->H, T, x->Dv});
    const mha_recurrent_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_RECURRENT_DELTA,
                                     .log_decay = x->log_decay,
                                     .strength = x->strength};
    mha_status status = mha_recurrent_forward(x->context, &desc, x->q, x->k, x->v, NULL, &o);
    if (!status) status = make_map(x, true, exact);
    if (!status) status = make_map(x, false, ignored);
    for (int64_t i = 0; i < x->H * T && !status; i++)
        add_row(x, i / T, i % T, exact + i * T, ignored + i * T, out + i * x->Dv, to);
    free(exact), free(ignored), free(out);
    return status;
}

static void print_table(const totals *x)
{
    printf("  position       rows  erase ignored  of the output  exact map  negative\n");
    for (int i = 0; i < RANGES; i++) {
        char name[32];
        if (x->rows[i] == 0) continue;
        snprintf(name, sizeof name, "%d..%d", 1 << i, (2 << i) - 1);
        printf("%10s %10ld", i ? name : "1", x->rows[i]);
        const double n = (double)x->rows[i], *sum = x->sum[i];
        printf(" %14.3f %14.3f %10.6f %9.3f\n", sum[0] / n, sum[1] / n, sum[2] / n, sum[3] / n);
    }
}

/* ---- random keys ----------------------------------------------------------------------------- */

static float draw(void)
{
    static uint64_t state = 1;
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(state >> 40) / (1 << 24);
    }
    return (float)sum;
}

static void fill(float *x, int64_t rows, bool unit)
{
    for (int64_t i = 0; i < rows; i++, x += SIZE) {
        double squares = 0;
        for (int c = 0; c < SIZE; c++) x[c] = draw(), squares += (double)x[c] * (double)x[c];
        for (int c = 0; unit && c < SIZE; c++) x[c] = (float)((double)x[c] / sqrt(squares));
    }
}

static mha_status run_random(mha_context *context, totals *to)
{
    static float q[HEADS * TOKENS * SIZE], k[HEADS * TOKENS * SIZE], v[HEADS * TOKENS * SIZE];
    static float log_decay[HEADS * TOKENS], strength[HEADS * TOKENS];
    const int64_t shape[] = {1, HEADS, TOKENS, SIZE};
    fill(q, HEADS * TOKENS, true), fill(k, HEADS * TOKENS, true), fill(v, HEADS * TOKENS, false);
    for (int i = 0; i < HEADS * TOKENS; i++) {
        log_decay[i] = -0.01f * fabsf(draw());
        strength[i] = 1 / (1 + expf(-draw()));
    }
    const mha_tensor qs = mha_tensor_contiguous(q, MHA_F32, 4, shape),
                     ks = mha_tensor_contiguous(k, MHA_F32, 4, shape),
                     vs = mha_tensor_contiguous(v, MHA_F32, 4, shape),
                     decays = mha_tensor_contiguous(log_decay, MHA_F32, 3, shape),
                     strengths = mha_tensor_contiguous(strength, MHA_F32, 3, shape);
    const problem x = {context, &qs, &ks, &vs, &decays, &strengths, HEADS, TOKENS, SIZE};
    printf("random keys: %d heads of %d, %d tokens\n", HEADS, SIZE, TOKENS);
    return compare(&x, to);
}

/* ---- a model --------------------------------------------------------------------------------- */

typedef struct job {
    mha_context *context;
    totals *layers;
} job;

static mha_status take_layer(void *user, const mha_activations *kept, int64_t layer)
{
    const job *to = user;
    mha_layer_view view = {.struct_size = sizeof view};
    const mha_status status = mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view);
    if (status || !view.mixer) return status;
    const problem x = {to->context,
                       &view.q,
                       &view.k,
                       &view.v,
                       &view.log_decay,
                       &view.strength,
                       view.heads.shape[1],
                       view.q.shape[2],
                       view.v.shape[3]};
    return compare(&x, &to->layers[layer]);
}

static mha_status run_model(mha_context *context, char **arguments, int64_t T)
{
    mha_transformer *net = NULL;
    mha_transformer_desc d = {.struct_size = sizeof d};
    FILE *file = fopen(arguments[1], "r");
    if (!file) return perror(arguments[1]), MHA_ERR_FILE;
    mha_status status = mha_checkpoint_load(context, arguments[0], &net);
    if (!status) mha_transformer_describe(net, &d);
    int32_t *ids = take(T);
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, T});
    job to = {context, status ? NULL : calloc((size_t)d.num_layers, sizeof(totals))};
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = &tokens,
                                         .after_layer = take_layer,
                                         .after_layer_user = &to};
    for (int64_t n = 0; !status && fscanf(file, "%d", &ids[n]) == 1; n = (n + 1) % T)
        if (n == T - 1)
            status = mha_transformer_forward(context, net, &input, NULL, NULL, NULL, NULL);
    for (int64_t l = 0; !status && l < d.num_layers; l++) {
        if (to.layers[l].rows[0] == 0) continue;
        printf("layer %d\n", (int)l);
        print_table(&to.layers[l]);
    }
    fclose(file), free(ids), free(to.layers);
    mha_transformer_destroy(net);
    return status;
}

int main(int argc, char **argv)
{
    static totals random;
    mha_context *context = NULL;
    const int64_t T = argc > 3 ? atoi(argv[3]) : 96;
    if (argc == 2 || T < 1 || T > 2048) return fprintf(stderr, "see the top of delta_maps.c\n"), 2;
    mha_status status = mha_context_create(NULL, &context);
    if (!status) status = argc > 2 ? run_model(context, argv + 1, T) : run_random(context, &random);
    if (status) fprintf(stderr, "%s\n", mha_error_detail());
    if (!status && argc == 1) print_table(&random);
    mha_context_destroy(context);
    return status ? 1 : 0;
}
