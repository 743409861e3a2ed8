/* The error of attention caused by a cache's type: 8 queries of 8 heads on 2 key/value heads of 128
 * and 4,096 keys, mha_kv_cache_append() and mha_kv_cache_attention() compared with a
 * double-precision reference on the original numbers. q, k and v are normal; some rows of the table
 * enlarge four channels of k.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/caches.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_caches && build/bench_caches
 *
 * The first table shows the root mean square error of the output, divided by the output's root mean
 * square. The second shows the largest absolute error of a score. "-": the library does not support
 * this cache. */
#include <multihead/cache.h>
#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { H = 8, HK = 2, T = 8, S = 4096, D = 128, ODD = 4 };

static const struct {
    const char *name;
    float bias, factor; /* of ODD channels of k */
} kinds[] = {{"normal", 0, 1}, {"k + 8", 8, 1}, {"k x 16", 0, 16}};

static const struct {
    const char *name;
    mha_dtype type;
    mha_kv_scales scales;
} caches[] = {{"f32", MHA_F32, MHA_KV_SCALES_POSITION},
              {"f16", MHA_F16, MHA_KV_SCALES_POSITION},
              {"bf16", MHA_BF16, MHA_KV_SCALES_POSITION},
              {"int8", MHA_I8, MHA_KV_SCALES_POSITION},
              {"int8, channel", MHA_I8, MHA_KV_SCALES_CHANNEL}};

enum { KINDS = sizeof kinds / sizeof *kinds, CACHES = sizeof caches / sizeof *caches };

typedef struct errors {
    double output, score; /* NAN: not supported */
} errors;

/* Too large for the stack. */
static float q[H * T * D], k[HK * S * D], v[HK * S * D], o[H * T * D], scores[H * T * S];
static double right_o[H * T * D], right_scores[H * T * S];

static void check(mha_status status)
{
    if (status == MHA_OK) return;
    fprintf(stderr, "bench_caches: %s\n", mha_error_detail());
    exit(1);
}

/* Box-Muller. */
static void draw(float *x, int64_t count, uint64_t seed)
{
    double u[2];
    for (int64_t i = 0; i < count; i++) {
        for (int j = 0; j < 2; j++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            u[j] = ((double)(seed >> 11) + 0.5) * 0x1p-53;
        }
        x[i] = (float)(sqrt(-2 * mha_log(u[0])) * mha_cos_turns(u[1]));
    }
}

static void make_data(float bias, float factor)
{
    draw(q, H * T * D, 1);
    draw(k, (int64_t)HK * S * D, 2);
    draw(v, (int64_t)HK * S * D, 3);
    for (int64_t i = 0; i < (int64_t)HK * S; i++)
        for (int64_t c = 0; c < ODD; c++) {
            float *x = &k[i * D + c * D / ODD];
            *x = *x * factor + bias;
        }
}

static void refer(void)
{
    for (int64_t row = 0; row < H * T; row++) {
        const int64_t head = row / T / (H / HK);
        double most = -INFINITY, sum = 0, *to = right_o + row * D, *s = right_scores + row * S;
        for (int64_t j = 0; j < S; j++) {
            s[j] = 0;
            for (int64_t d = 0; d < D; d++)
                s[j] += (double)q[row * D + d] * (double)k[(head * S + j) * D + d];
            s[j] /= sqrt(D);
            most = fmax(most, s[j]);
        }
        for (int64_t d = 0; d < D; d++) to[d] = 0;
        for (int64_t j = 0; j < S; j++) {
            const double p = mha_exp(s[j] - most);
            sum += p;
            for (int64_t d = 0; d < D; d++) to[d] += p * (double)v[(head * S + j) * D + d];
        }
        for (int64_t d = 0; d < D; d++) to[d] /= sum;
    }
}

static errors measure(mha_context *context, int i)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 1,
                                    .kv_heads = HK,
                                    .capacity = S,
                                    .head_dim = D,
                                    .type = caches[i].type,
                                    .key_scales = caches[i].scales};
    const mha_tensor tq = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, H, T, D}),
                     tk = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, HK, S, D}),
                     tv = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, HK, S, D}),
                     to = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, H, T, D}),
                     ts = mha_tensor_contiguous(scores, MHA_F32, 4, (int64_t[]){1, H, T, S});
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .scores = &ts};
    mha_kv_cache *cache = NULL;
    errors e = {NAN, NAN};
    const mha_status status = mha_kv_cache_create(context, &desc, &cache);
    if (status == MHA_ERR_UNSUPPORTED) return e;
    check(status);
    check(mha_kv_cache_append(cache, &tk, &tv, NULL));
    check(mha_kv_cache_attention(context, cache, NULL, &tq, &to, &outputs));
    mha_kv_cache_destroy(cache);
    double wrong = 0, all = 0;
    for (int64_t j = 0; j < H * T * D; j++) {
        wrong += ((double)o[j] - right_o[j]) * ((double)o[j] - right_o[j]);
        all += right_o[j] * right_o[j];
    }
    e = (errors){sqrt(wrong / all), 0};
    for (int64_t j = 0; j < H * T * S; j++)
        e.score = fmax(e.score, fabs((double)scores[j] - right_scores[j]));
    return e;
}

static void print(double x)
{
    if (isnan(x))
        printf(" %13s", "-");
    else
        printf(" %13.1e", x);
}

int main(void)
{
    mha_context *context;
    errors all[KINDS][CACHES];
    check(mha_context_create(NULL, &context));
    for (int kind = 0; kind < KINDS; kind++) {
        make_data(kinds[kind].bias, kinds[kind].factor);
        refer();
        for (int i = 0; i < CACHES; i++) all[kind][i] = measure(context, i);
    }
    mha_context_destroy(context);
    for (int table = 0; table < 2; table++) {
        printf("%s%-8s", table ? "\n" : "", table ? "score" : "output");
        for (int i = 0; i < CACHES; i++) printf(" %13s", caches[i].name);
        for (int kind = 0; kind < KINDS; kind++) {
            printf("\n%-8s", kinds[kind].name);
            for (int i = 0; i < CACHES; i++)
                print(table ? all[kind][i].score : all[kind][i].output);
        }
        printf("\n");
    }
    return 0;
}
