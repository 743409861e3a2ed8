/* Inside the module: its parts, and one forward call, which the files here share. */
#ifndef MHAI_MODULE_PARTS_H
#define MHAI_MODULE_PARTS_H

#include "attend/attend.h"
#include "nn/linear.h"

#include <multihead/module.h>

enum { MHAI_Q, MHAI_K, MHAI_V, MHAI_O, MHAI_PROJECTIONS };

/* Parameters outside of layers: one run of floats each. */
enum {
    MHAI_BIAS_K, /* [Hk*D] */
    MHAI_BIAS_V, /* [Hk*Dv] */
    MHAI_Q_NORM, /* [D] */
    MHAI_K_NORM, /* [D] */
    MHAI_SINKS,  /* [H] */
    MHAI_VECTORS
};

struct mha_module {
    mha_allocator allocator;
    mha_module_desc desc; /* every default filled in */
    mha_linear *projection[MHAI_PROJECTIONS];
    float *vector[MHAI_VECTORS]; /* NULL: not a parameter of this module */
    int64_t vector_length[MHAI_VECTORS];
};

/* The tensors of a call. */
enum { MHAI_QUERY, MHAI_KEY, MHAI_VALUE, MHAI_OUT, MHAI_GIVEN };

/* Outputs of the module itself, in the order of f->each. */
enum {
    MHAI_OUT_P,
    MHAI_OUT_AVERAGE,
    MHAI_OUT_Q,
    MHAI_OUT_K,
    MHAI_OUT_V,
    MHAI_OUT_HEADS,
    MHAI_OUT_LSE,
    MHAI_OUTPUTS
};

/* One forward call: sizes, checked inputs, and the views of scratch that pass between the steps.
 * All views have a batch axis, whether the caller's tensors have it or not. */
typedef struct mhai_forward {
    mha_context *context;
    const mha_module *module;
    int64_t B, T, S;          /* S: rows of key and value */
    int64_t columns;          /* keys of the longest sequence: S, unless the batch is ragged */
    int64_t extra;            /* columns after them: bias_k, zeros */
    bool has_query, has_keys; /* to project */
    bool unbatched;           /* the caller's tensors lack the batch axis */
    bool measuring;           /* only count scratch: tensors may have no data */
    int64_t bytes;            /* scratch reserved so far */
    size_t attention_bytes;   /* scratch that attention on the cache will need */
    int64_t *lengths, *new_lengths, *query_starts; /* [B] of the cache: before, after; of queries */
    mha_tensor query, key, value, out; /* f32: the caller's, or in scratch converted copies */
    mha_tensor given[MHAI_GIVEN];      /* the caller's if not f32; data NULL: f32 */
    mhai_attend at; /* desc: the caller's plus the module's own parameters; q, k, v, heads:
                       [B,H,T,D] views of [B,T,H*D] scratch */
    mha_tensor each[MHAI_OUTPUTS]; /* the caller's; data NULL: not requested */
    bool wanted[MHAI_OUTPUTS];
    mha_tensor probabilities, narrow; /* all columns, and those that attention fills */
    mha_tensor lse, sinks;
    mha_tensor query_ids, key_ids;
} mhai_forward;

/* module_scratch.c: memory for a call; while counting, only its size. */
MHA_NODISCARD mha_status mhai_module_take(mhai_forward *f, int64_t count, size_t size,
                                          void *pointer);

/* module_check.c: read a call's arguments into f. */
MHA_NODISCARD mha_status mhai_module_check(mhai_forward *f, const mha_module_call *call);

/* module_position.c: the norms and the rotation of a module, and the positions of a call's
 * tokens. */
mhai_attend mhai_module_attend(const mha_module *module);
MHA_NODISCARD mha_status mhai_module_position_check(mha_context *context, mha_module_desc *desc);
MHA_NODISCARD mha_status mhai_module_position_prepare(mhai_forward *f, const mha_module_call *call);

/* module_cached.c: a call with a cache. Checks and scratch; the plan of attention; append and
 * attend, or neither. */
MHA_NODISCARD mha_status mhai_module_cached_prepare(mhai_forward *f);
MHA_NODISCARD mha_status mhai_module_cached_plan(mhai_forward *f, mha_attention_plan *plan);
MHA_NODISCARD mha_status mhai_module_cached_attend(mhai_forward *f);

/* module_extra.c: the keys that every query sees, in addition to the call's. The first function
 * adds them to f->desc as far as possible and requests from attention what the second one needs,
 * which runs on its results. */
int64_t mhai_module_extra_keys(const mha_module *module);
MHA_NODISCARD mha_status mhai_module_extra_prepare(mhai_forward *f);
void mhai_module_extra_merge(mhai_forward *f);

/* Row t of head h of the tensors' batch index b; its indices in the caller's sequences. */
typedef struct mhai_module_row {
    int64_t b, h, t;
    int64_t sequence, query;
} mhai_module_row;

static inline float *mhai_module_row_of(const mha_tensor *x, const mhai_module_row *r)
{
    return (float *)x->data + r->b * x->stride[0] + r->h * x->stride[1] + r->t * x->stride[2];
}

/* Row i of B
 *
 * T, head 0; the learned key's score there, and the factor of its weight. */
mhai_module_row mhai_module_row_at(const mhai_forward *f, int64_t i);
double mhai_module_learned_score(const mhai_forward *f, const mhai_module_row *r);
double mhai_module_learned_factor(const mhai_forward *f, const mhai_module_row *r);

/* module_parameters.c: the destination of the parameter of that index: weights or biases of
 * `count` projections from `first` on, or vector `first`. */
typedef struct mhai_module_place {
    bool weight, vector;
    int first, count;
} mhai_module_place;
bool mhai_module_place_at(const mha_module *module, int64_t index, mhai_module_place *place);

/* module_backward_extra.c: the learned key's terms in dq [B,H,T,D] and its own gradients (NULL:
 * not requested), from those of the heads and of lse (NULL: none). f->q, f->heads, f->lse are
 * the forward's. */
MHA_NODISCARD mha_status mhai_module_extra_backward(mhai_forward *f, const mha_tensor *dheads,
                                                    const mha_tensor *dlse, const mha_tensor *dq,
                                                    float *bias_k, float *bias_v);

#endif
