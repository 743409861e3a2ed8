/* See counts.h. Products and sums go through a tally that records overflow. */
#include "common/counts.h"

#include <stddef.h>

typedef struct tally {
    bool overflow;
} tally;

static int64_t times(tally *t, int64_t a, int64_t b)
{
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) t->overflow = true;
    return product;
}

static int64_t plus(tally *t, int64_t a, int64_t b)
{
    int64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) t->overflow = true;
    return sum;
}

/* Product of count factors. */
static int64_t product(tally *t, int count, const int64_t *factors)
{
    int64_t result = 1;
    for (int i = 0; i < count; i++) result = times(t, result, factors[i]);
    return result;
}

#define PRODUCT(t, ...)                                                   \
    product(t, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
            (const int64_t[]){__VA_ARGS__})

static int64_t sum(tally *t, int count, const int64_t *terms)
{
    int64_t result = 0;
    for (int i = 0; i < count; i++) result = plus(t, result, terms[i]);
    return result;
}

/* w (w + 1) / 2, w >= 0: the even factor is halved first. */
static int64_t triangle(tally *t, int64_t w)
{
    return w % 2 == 0 ? times(t, w / 2, plus(t, w, 1)) : times(t, w, w / 2 + 1);
}

/* Pairs on one side of the diagonal, at distances 1 .. reach: sum of n - d. */
static int64_t side(tally *t, int64_t n, int64_t reach)
{
    if (n == 0) return 0;
    int64_t far = reach < 0 || reach > n - 1 ? n - 1 : reach;
    /* n far - far (far + 1) / 2 = far (n - far) + far (far - 1) / 2, which never exceeds n^2 */
    return plus(t, times(t, far, n - far), far ? triangle(t, far - 1) : 0);
}

/* Pairs (t, s) with t - left <= s <= t + right, 0 <= t, s < n; -1: open. -1 on overflow. */
static int64_t count_visible(int64_t n, int64_t left, int64_t right)
{
    tally t = {false};
    int64_t pairs = plus(&t, n, plus(&t, side(&t, n, left), side(&t, n, right)));
    return t.overflow ? -1 : pairs;
}

static counts_parameters count_parameters(tally *t, const counts_shape *s)
{
    counts_parameters p;
    int64_t width = times(t, s->heads, s->head_dim), shared = times(t, s->kv_heads, s->head_dim);
    p.q = p.o = times(t, width, s->embed);
    p.k = p.v = times(t, shared, s->embed);
    p.biases =
        plus(t, s->qkv_bias ? plus(t, width, times(t, 2, shared)) : 0, s->out_bias ? s->embed : 0);
    p.all = sum(t, 5, (const int64_t[]){p.q, p.k, p.v, p.o, p.biases});
    return p;
}

static counts_flops count_flops(tally *t, const counts_shape *s, const counts_parameters *p,
                                int64_t visible)
{
    counts_flops f;
    int64_t tokens = PRODUCT(t, 2, s->batch, s->length);
    int64_t seen = PRODUCT(t, visible, s->batch, s->heads);
    f.q = times(t, tokens, p->q);
    f.k = times(t, tokens, p->k);
    f.v = times(t, tokens, p->v);
    f.o = times(t, tokens, p->o);
    f.scores = f.sum = PRODUCT(t, 2, s->head_dim, seen);
    f.softmax = times(t, 5, seen);
    f.all = sum(t, 7, (const int64_t[]){f.q, f.k, f.v, f.scores, f.softmax, f.sum, f.o});
    return f;
}

static void count_bytes(tally *t, const counts_shape *s, counts *c)
{
    int64_t token = PRODUCT(t, 2, s->kv_heads, s->head_dim, s->element_bytes);
    int64_t kept = s->left >= 0 && s->left < s->length ? s->left + 1 : s->length;
    if (kept > s->length) kept = s->length;
    c->matrix_bytes = PRODUCT(t, s->batch, s->heads, c->pairs, s->element_bytes);
    c->cache_bytes = PRODUCT(t, token, s->batch, s->length);
    c->window_cache_bytes = PRODUCT(t, token, s->batch, kept);
    c->token_bytes = times(t, token, s->cached);
}

bool counts_of(const counts_shape *s, counts *result)
{
    tally t = {false};
    counts c = {0};
    if (s->embed < 1 || s->heads < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->layers < 0 ||
        s->batch < 1 || s->length < 1 || s->element_bytes < 1)
        return false;
    c.pairs = times(&t, s->length, s->length);
    c.visible_pairs = count_visible(s->length, s->left, s->right);
    if (c.visible_pairs < 0) return false;
    c.parameters = count_parameters(&t, s);
    c.flops = count_flops(&t, s, &c.parameters, c.visible_pairs);
    count_bytes(&t, s, &c);
    c.all_parameters = times(&t, s->layers, c.parameters.all);
    c.all_flops = times(&t, s->layers, c.flops.all);
    c.all_matrix_bytes = times(&t, s->layers, c.matrix_bytes);
    c.all_kv_bytes = times(&t, s->layers, c.cache_bytes);
    c.all_cache_bytes = times(&t, s->cached, c.cache_bytes);
    c.all_window_cache_bytes = times(&t, s->cached, c.window_cache_bytes);
    if (t.overflow) return false;
    *result = c;
    return true;
}

int64_t counts_group_example(const counts_shape *shape)
{
    int64_t h = shape->heads, best = 0;
    if (shape->kv_heads > 1 && shape->kv_heads < h) return shape->kv_heads;
    for (int64_t i = 2; i <= 64 && i < h; i++) {
        if (h % i != 0) continue;
        int64_t off = i > 8 ? i - 8 : 8 - i, best_off = best > 8 ? best - 8 : 8 - best;
        if (!best || off < best_off) best = i;
    }
    return best;
}
