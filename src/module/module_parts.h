/* Internals of the module: its parts, and the state of a forward call. */
#ifndef MHAI_MODULE_PARTS_H
#define MHAI_MODULE_PARTS_H

#include "attend/attend.h"
#include "nn/linear.h"

#include <multihead/module.h>

enum { MHAI_Q, MHAI_K, MHAI_V, MHAI_O, MHAI_PROJECTIONS };

/* Parameters outside of linear layers: contiguous floats. */
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
    float *vector[MHAI_VECTORS]; /* NULL: the module does not have it */
    int64_t vector_length[MHAI_VECTORS];
};

/* The tensors of a call. */
enum { MHAI_QUERY, MHAI_KEY, MHAI_VALUE, MHAI_OUT, MHAI_GIVEN };

/* Outputs of the module itself, in the order of mhai_forward.each. */
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

/* A forward call: sizes, checked inputs, and views of scratch. All views have a batch axis, even if
 * the caller's tensors do not. */
typedef struct mhai_forward {
    mha_context *context;
    const mha_module *module;
    int64_t B, T, S;          /* S: length of key and value */
    int64_t columns;          /* keys of the longest sequence: S, unless the batch is ragged */
    int64_t extra;            /* columns after the keys: bias_k, zeros */
    bool has_query, has_keys; /* whether the call has queries, and keys */
    bool unbatched;           /* the caller's tensors have no batch axis */
    bool measuring;           /* only measure scratch; tensors may have no data */
    int64_t bytes;            /* scratch reserved so far */
    size_t attention_bytes;   /* scratch of attention with the cache */
    int64_t *lengths, *new_lengths, *query_starts; /* [B] lengths in the cache before and after the
                                                    * call; starts of queries */
    mha_tensor query, key, value, out;             /* f32: the caller's tensors, or copies in
                                                    * scratch */
    mha_tensor given[MHAI_GIVEN];                  /* the caller's tensors that are not f32;
                                                    * otherwise data is NULL */
    mhai_attend at; /* desc: the caller's descriptor with the module's parameters added; q, k, v,
                     * heads: [B,H,T,D] views of [B,T,H*D] scratch */
    mha_tensor each[MHAI_OUTPUTS]; /* the caller's tensors; data NULL: not requested */
    bool wanted[MHAI_OUTPUTS];
    mha_tensor probabilities, narrow; /* all columns; the columns that attention writes */
    mha_tensor lse, sinks;
    mha_tensor query_ids, key_ids;
} mhai_forward;

/* module_scratch.c: allocate scratch for a call. While measuring, only add up the size. */
MHA_NODISCARD mha_status mhai_module_take(mhai_forward *f, int64_t count, size_t size,
                                          void *pointer);

/* module_check.c: read the arguments of a call into f. */
MHA_NODISCARD mha_status mhai_module_check(mhai_forward *f, const mha_module_call *call);

/* module_position.c: norms and rotation of a module, and positions of a call's tokens. */
mhai_attend mhai_module_attend(const mha_module *module);
MHA_NODISCARD mha_status mhai_module_position_check(mha_context *context, mha_module_desc *desc);
MHA_NODISCARD mha_status mhai_module_position_prepare(mhai_forward *f, const mha_module_call *call);

/* module_cached.c: a call with a cache. Check it and reserve scratch; plan attention; run it. */
MHA_NODISCARD mha_status mhai_module_cached_prepare(mhai_forward *f);
MHA_NODISCARD mha_status mhai_module_cached_plan(mhai_forward *f, mha_attention_plan *plan);
MHA_NODISCARD mha_status mhai_module_cached_attend(mhai_forward *f);

/* module_extra.c: extra keys to which every query attends. prepare() adds the key of zeros to the
 * sinks, and requests the outputs of attention that merge() needs. merge() adds the learned key and
 * the columns of both keys to the results. */
int64_t mhai_module_extra_keys(const mha_module *module);
MHA_NODISCARD mha_status mhai_module_extra_prepare(mhai_forward *f);
void mhai_module_extra_merge(mhai_forward *f);

/* Row t of head h at batch index b of the tensors. sequence and query are indices of the caller. */
typedef struct mhai_module_row {
    int64_t b, h, t;
    int64_t sequence, query;
} mhai_module_row;

static inline float *mhai_module_row_of(const mha_tensor *x, const mhai_module_row *r)
{
    return (float *)x->data + r->b * x->stride[0] + r->h * x->stride[1] + r->t * x->stride[2];
}

/* Row i of B T rows, at head 0; the score of the learned key there, and
 * the factor of its weight. */
mhai_module_row mhai_module_row_at(const mhai_forward *f, int64_t i);
double mhai_module_learned_score(const mhai_forward *f, const mhai_module_row *r);
double mhai_module_learned_factor(const mhai_forward *f, const mhai_module_row *r);

/* module_parameters.c: where the parameter at an index is stored. This is the weights or biases of
 * `count` projections, starting at `first`, or vector `first`. */
typedef struct mhai_module_place {
    bool weight, vector;
    int first, count;
} mhai_module_place;
bool mhai_module_place_at(const mha_module *module, int64_t index, mhai_module_place *place);

/* module_backward_extra.c: add the learned key's terms to dq [B,H,T,D], and compute its own
 * gradients (NULL: not requested) from the gradients of heads and lse (NULL: none). f->q, f->heads
 * and f->lse come from the forward call. */
MHA_NODISCARD mha_status mhai_module_extra_backward(mhai_forward *f, const mha_tensor *dheads,
                                                    const mha_tensor *dlse, const mha_tensor *dq,
                                                    float *bias_k, float *bias_v);

#endif
