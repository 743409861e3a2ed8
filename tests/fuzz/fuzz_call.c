#include "fuzz_call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_call_make(fuzz_call *c, fuzz_part *in)
{
    memset(c, 0, sizeof *c);
    c->in = in;
    c->r = rng_make(fuzz_take(in, 4), 0);
}

void fuzz_call_free(fuzz_call *c)
{
    for (int i = 0; i < c->own; i++) guarded_free(&c->made[i]);
}

void fuzz_call_add(fuzz_call *c, guarded *tensor, bool output)
{
    fuzz_must(c->count < FUZZ_MOST_TENSORS, "too many tensors for this target");
    c->all[c->count] = tensor;
    c->right[c->count] = tensor->view;
    c->output[c->count++] = output;
}

mha_dtype fuzz_float(fuzz_call *c)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F32, MHA_F16, MHA_BF16};
    return types[fuzz_pick(c->in, 0, 3)];
}

/* Typical numbers; special values if requested. */
static void fill(fuzz_call *c, const mha_tensor *x, bool odd)
{
    static const float rare[] = {0, -0.0f, 1e-40f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do {
        void *at = guarded_element(x, index);
        const uint64_t bits = rng_next(&c->r);
        float value = (float)((double)(bits >> 40) * 0x1p-22 - 2);
        uint16_t half;
        if (odd && bits % 13 == 0) value = rare[bits >> 8 & 7];
        memcpy(&half, (char *)&value + 2, sizeof half);
        switch (x->dtype) {
        case MHA_F32: memcpy(at, &value, sizeof value); break;
        case MHA_BF16: memcpy(at, &half, sizeof half); break;
        case MHA_F16: *(uint16_t *)at = (uint16_t)(odd ? bits : bits & 0xBDFF); break;
        case MHA_U8: *(uint8_t *)at = bits & 3 ? (uint8_t)(bits >> 8) : 0; break;
        case MHA_I32: *(int32_t *)at = (int32_t)(bits & 3); break;
        default: *(int64_t *)at = (int64_t)(bits & 3) - (odd && bits & 4);
        }
    } while (guarded_next(x, index));
}

static mha_tensor *make(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape, bool output)
{
    guarded *g = &c->made[c->own++];
    unsigned layout = guarded_random_layout(&c->r, !output && dtype != MHA_I64);
    if (ndim < 2) layout = 0;
    if (rng_chance(&c->r, 0.4)) layout |= LAYOUT_FRONT;
    *g = guarded_make(&c->r, dtype, ndim, shape, layout);
    fuzz_call_add(c, g, output);
    return &g->view;
}

mha_tensor *fuzz_input(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape)
{
    mha_tensor *view = make(c, dtype, ndim, shape, false);
    fill(c, view, fuzz_pick(c->in, 0, 7) == 0);
    return view;
}

mha_tensor *fuzz_output(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape)
{
    return make(c, dtype, ndim, shape, true);
}

mha_tensor *fuzz_broadcast(fuzz_call *c, mha_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t some[MHA_MAX_DIMS];
    const int kept = (int)fuzz_pick(c->in, 0, ndim);
    for (int i = 0; i < kept; i++) some[i] = fuzz_pick(c->in, 0, 3) ? shape[ndim - kept + i] : 1;
    return fuzz_input(c, dtype, kept, some);
}

void fuzz_call_spoil(fuzz_call *c)
{
    const int64_t times = fuzz_pick(c->in, 0, 5) - 2;
    for (int64_t i = 0; i < times && c->count > 0; i++) {
        const int chosen = (int)fuzz_pick(c->in, 0, c->count - 1);
        mha_tensor *view = &c->all[chosen]->view;
        if (c->output[chosen] && fuzz_pick(c->in, 0, 3) == 0)
            view->data = c->all[fuzz_pick(c->in, 0, c->count - 1)]->view.data;
        else
            fuzz_spoil_tensor(c->in, view);
    }
}

/* The address of the first element is valid for every caller. */
static bool has_elements(const mha_tensor *view)
{
    bool any = view->data && view->ndim >= 0 && view->ndim <= MHA_MAX_DIMS;
    for (int i = 0; any && i < view->ndim; i++) any = view->shape[i] > 0;
    return any;
}

/* The output has its own memory, or overlaps another output, which must be rejected. */
static bool is_backed(const fuzz_call *c, int i)
{
    const mha_tensor *view = &c->all[i]->view;
    if (fuzz_backed(view, c->all[i]->map, c->all[i]->bytes)) return true;
    for (int j = 0; j < c->count && !c->in_place; j++)
        if (j != i && c->all[j]->view.data == view->data && has_elements(&c->all[j]->view))
            return fuzz_backed(view, c->all[j]->map, c->all[j]->bytes);
    return false;
}

bool fuzz_call_backed(const fuzz_call *c)
{
    for (int i = 0; i < c->count; i++)
        if (!is_backed(c, i)) return false;
    return true;
}

void *fuzz_struct(fuzz_call *c, const void *given, size_t size)
{
    const uint32_t said = fuzz_pick(c->in, 0, 15)
                              ? (uint32_t)size
                              : (uint32_t)fuzz_pick(c->in, 0, (int64_t)size + 24);
    unsigned char *copy = calloc(1, said < 4 ? 4 : said);
    fuzz_must(copy != NULL, "out of memory");
    memcpy(copy, given, said < size ? said : size);
    memcpy(copy, &said, sizeof said);
    c->resized = c->resized || said != size;
    return copy;
}

/* ---- the two runs -------------------------------------------------------------------------- */

static void prepare(fuzz_call *c, int byte)
{
    for (int i = 0; i < c->count; i++)
        if (c->output[i])
            memset(c->all[i]->map, byte, c->all[i]->bytes);
        else
            guarded_protect(c->all[i], true);
}

static void release(fuzz_call *c)
{
    for (int i = 0; i < c->count; i++)
        if (!c->output[i]) guarded_protect(c->all[i], false);
}

static void check_untouched(const fuzz_call *c, int byte)
{
    for (int i = 0; i < c->count; i++) {
        const guarded *g = c->all[i];
        fuzz_must(!c->output[i] ||
                      (g->map[0] == byte && memcmp(g->map, g->map + 1, g->bytes - 1) == 0),
                  "an output was written on an error");
    }
}

/* Checks that bytes outside the view are unchanged. */
static void check_gaps(const guarded *g, const mha_tensor *view, unsigned char byte)
{
    unsigned char *mark = calloc(g->bytes, 1);
    int64_t index[MHA_MAX_DIMS] = {0};
    const size_t size = mha_dtype_size(view->dtype);
    fuzz_must(mark != NULL, "out of memory");
    if (!guarded_is_empty(view)) do
            memset(mark + ((unsigned char *)guarded_element(view, index) - g->map), 1, size);
        while (guarded_next(view, index));
    for (size_t i = 0; i < g->bytes; i++)
        fuzz_must(mark[i] || g->map[i] == byte, "written beside the elements of an output");
    free(mark);
}

static bool is_nan(mha_dtype dtype, const void *at)
{
    float x;
    uint16_t half;
    memcpy(&half, at, sizeof half);
    if (dtype == MHA_F16) return (half & 0x7FFF) > 0x7C00;
    if (dtype == MHA_BF16) return (half & 0x7FFF) > 0x7F80;
    if (dtype != MHA_F32) return false;
    memcpy(&x, at, sizeof x);
    return isnan(x);
}

static unsigned first_bytes(const void *at, size_t size)
{
    unsigned bits = 0;
    memcpy(&bits, at, size < sizeof bits ? size : sizeof bits);
    return bits;
}

/* Checks that the result equals the previous run's. The previous run began with different bytes, so
 * every element was written. */
static void check_same(int number, const guarded *g, const mha_tensor *view, const char *what)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    const size_t size = mha_dtype_size(view->dtype);
    if (guarded_is_empty(view)) return;
    do {
        const unsigned char *now = guarded_element(view, index), *then = g->copy + (now - g->map);
        if (memcmp(now, then, size) == 0) continue;
        if (is_nan(view->dtype, now) && is_nan(view->dtype, then)) continue;
        dprintf(2, "output %d, %s, [%lld, %lld, %lld, %lld]: 0x%08x, before 0x%08x\n", number,
                mha_dtype_name(view->dtype), (long long)index[0], (long long)index[1],
                (long long)index[2], (long long)index[3], first_bytes(now, size),
                first_bytes(then, size));
        fuzz_must(false, what);
    } while (guarded_next(view, index));
}

/* A shortened struct may lack this output. Its view was then not validated and may be invalid. */
static bool may_be_unseen(const fuzz_call *c, int i)
{
    return c->resized && memcmp(&c->all[i]->view, &c->right[i], sizeof c->right[i]) != 0;
}

mha_status fuzz_call_check(fuzz_call *c, fuzz_call_fn *call, void *user)
{
    c->isa = (unsigned)fuzz_pick(c->in, 0, 4);
    mha_status status[2];
    for (int run = 0; run < 2; run++) {
        const int byte = run ? 0xA5 : 0xFF;
        prepare(c, byte);
        status[run] = call(fuzz_context(run + 1, c->isa), user);
        release(c);
        fuzz_must_speak(status[run]);
        if (status[run] != MHA_OK) check_untouched(c, byte);
        for (int i = 0; i < c->count && status[run] == MHA_OK; i++) {
            if (!c->output[i] || may_be_unseen(c, i)) continue;
            check_gaps(c->all[i], &c->all[i]->view, (unsigned char)byte);
            if (run == 0) guarded_snapshot(c->all[i]);
            if (run == 1 && !c->resized)
                check_same(i, c->all[i], &c->all[i]->view,
                           "two threads give other bits than one, or an element was not written");
        }
    }
    fuzz_must(status[0] == status[1], "two threads give another status than one");
    fuzz_must(status[0] != MHA_ERR_NOMEM, "a small problem asks for too much memory");
    return status[0];
}

void fuzz_call_compare(fuzz_call *c, fuzz_call_fn *call, void *user, const char *what)
{
    for (int i = 0; i < c->count; i++)
        if (c->output[i]) guarded_snapshot(c->all[i]);
    prepare(c, 0xFF);
    const mha_status status = call(fuzz_context(1, c->isa), user);
    release(c);
    fuzz_must(status == MHA_OK, what);
    for (int i = 0; i < c->count; i++)
        if (c->output[i]) check_same(i, c->all[i], &c->all[i]->view, what);
}
