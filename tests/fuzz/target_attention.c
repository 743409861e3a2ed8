/* Attention: valid and invalid descriptors of every kind, forward and backward. */
#include "fuzz_call.h"
#include "support/backward_call.h"
#include "support/extras.h"

#include <multihead/backward.h>

#include <stdlib.h>
#include <string.h>

typedef struct problem_call {
    fuzz_call call;
    kinds_case kinds;
    extras outputs;
    mha_attention_desc *desc; /* allocated with struct_size bytes */
    mha_attention_outputs *wanted;
    const mha_tensor *o_gradient;
    mha_attention_gradients gradients;
} problem_call;

static kinds_shape some_shape(fuzz_part *in, rng *r)
{
    static const int64_t sizes[] = {1, 2, 3, 8, 16, 17, 33, 40, 64, 257};
    kinds_shape n = kinds_some_shape(r);
    n.B = fuzz_pick(in, 1, 3);
    n.Hk = fuzz_pick(in, 1, 2);
    n.H = n.Hk * fuzz_pick(in, 1, 3);
    n.T = fuzz_pick(in, 0, 7) ? fuzz_pick(in, 0, 6) : fuzz_pick(in, 0, 40);
    n.S = fuzz_pick(in, 0, 7) ? fuzz_pick(in, 0, 20) : fuzz_pick(in, 0, 70);
    n.D = sizes[fuzz_pick(in, 0, 15) ? fuzz_pick(in, 0, 6) : 9];
    n.Dv = sizes[fuzz_pick(in, 0, 6)];
    if (fuzz_pick(in, 0, 31) == 0) { /* more than one block of keys */
        n.S += 500;
        n.T %= 4, n.D = n.D % 16 + 1, n.Dv = n.Dv % 16 + 1;
    }
    n.kinds = (unsigned)fuzz_take(in, 3) & KINDS_ALL;
    if (fuzz_pick(in, 0, 1)) n.kinds &= (unsigned)fuzz_take(in, 3);
    return n;
}

static void spoil_numbers(fuzz_part *in, mha_attention_desc *d)
{
    const int64_t odd[] = {INT64_MAX, INT64_MIN, -1, 0, 1, INT64_C(1) << 61};
    const int64_t number = odd[fuzz_pick(in, 0, 5)];
    switch (fuzz_pick(in, 0, 15)) {
    case 0: d->flags ^= 1u << fuzz_pick(in, 0, 31); break;
    case 1: d->path = (mha_path)fuzz_pick(in, -1, 3); break;
    case 2: d->scale = (float)fuzz_double(in); break;
    case 3: d->q_offset = number; break;
    case 4: d->left_keys = number; break;
    case 5: d->right_keys = number; break;
    case 6: d->sink_keys = number; break;
    case 7: d->block_queries = number; break;
    case 8: d->block_keys = number; break;
    case 9: d->softcap = (float)fuzz_double(in); break;
    case 10: d->dropout = (float)fuzz_double(in); break;
    case 11: d->t5_max_distance = number; break;
    case 12: d->sequences = d->sequences > 1 ? d->sequences - 1 : -d->sequences; break;
    case 13: d->compute = (mha_compute)fuzz_pick(in, 0, 2); break;
    case 14: d->reserved = (uint32_t)fuzz_pick(in, 0, 1); break;
    default: d->query_starts = NULL;
    }
}

static void make(problem_call *p, fuzz_part *in)
{
    fuzz_call_make(&p->call, in);
    rng *r = &p->call.r;
    const kinds_shape shape = some_shape(in, r);
    kinds_make(&p->kinds, r, &shape);
    const extras_request request = extras_some(r, &p->kinds);
    const unsigned which = (unsigned)fuzz_take(in, 2) & EXTRAS_ALL;
    extras_make(&p->outputs, r, &p->kinds, &request, which, guarded_random_layout(r, false));
    fuzz_call_add(&p->call, &p->kinds.q, false);
    fuzz_call_add(&p->call, &p->kinds.k, false);
    fuzz_call_add(&p->call, &p->kinds.v, false);
    for (int i = 0; i < p->kinds.input_count; i++)
        fuzz_call_add(&p->call, &p->kinds.inputs[i], false);
    fuzz_call_add(&p->call, &p->outputs.o, true);
    for (int i = 0; i < EXTRAS_COUNT; i++)
        if (which & 1u << i) fuzz_call_add(&p->call, &p->outputs.each[i], true);
    /* Views of the same memory as f16 or bf16, with any bits. */
    guarded *floats[] = {&p->kinds.q, &p->kinds.k, &p->kinds.v, &p->outputs.o};
    for (int i = 0; i < 4; i++) floats[i]->view.dtype = fuzz_float(&p->call);
    if (fuzz_pick(in, 0, 3) == 0) spoil_numbers(in, &p->kinds.desc);
    if (fuzz_pick(in, 0, 7) == 0) p->kinds.desc.compute = MHA_COMPUTE_BF16;
    if (fuzz_pick(in, 0, 7) == 0) p->kinds.lengths[0] = fuzz_pick(in, -1, 80);
    if (fuzz_pick(in, 0, 15) == 0) p->kinds.key_starts[1] = fuzz_pick(in, -1, 80);
    if (fuzz_pick(in, 0, 15) == 0) p->outputs.request.heads[0] = fuzz_pick(in, -1, 9);
    if (fuzz_pick(in, 0, 15) == 0) p->outputs.request.rows[0] = fuzz_pick(in, -1, 300);
    fuzz_call_spoil(&p->call);
    p->desc = fuzz_struct(&p->call, &p->kinds.desc, sizeof p->kinds.desc);
    p->wanted = fuzz_struct(&p->call, &p->outputs.outputs, sizeof p->outputs.outputs);
}

static mha_status explain(mha_context *context, problem_call *p)
{
    mha_attention_plan plan;
    return mha_attention_explain(context, p->desc, &p->kinds.q.view, &p->kinds.k.view,
                                 &p->kinds.v.view, &p->outputs.o.view, p->wanted, &plan);
}

static mha_status forward(mha_context *context, void *user)
{
    problem_call *p = user;
    return mha_attention_forward(context, p->desc, &p->kinds.q.view, &p->kinds.k.view,
                                 &p->kinds.v.view, &p->outputs.o.view, p->wanted);
}

static mha_status backward(mha_context *context, void *user)
{
    problem_call *p = user;
    return mha_attention_backward(
        context, BACKWARD_CALL(p->desc, &p->kinds.q.view, &p->kinds.k.view, &p->kinds.v.view,
                               &p->outputs.o.view, &p->outputs.each[EXTRA_LSE].view, p->o_gradient,
                               &p->gradients));
}

/* Gradients of inputs, or of missing inputs. */
static void want(problem_call *p, fuzz_call *c)
{
    const mha_attention_desc *d = &p->kinds.desc; /* the struct to pass may be shorter */
    const struct {
        const mha_tensor *input, **gradient;
    } list[] = {
        {&p->kinds.q.view, &p->gradients.q},           {&p->kinds.k.view, &p->gradients.k},
        {&p->kinds.v.view, &p->gradients.v},           {d->bias, &p->gradients.bias},
        {d->alibi_slopes, &p->gradients.alibi_slopes}, {d->t5_table, &p->gradients.t5_table},
        {d->shaw_keys, &p->gradients.shaw_keys},       {d->shaw_values, &p->gradients.shaw_values},
        {d->sink_logits, &p->gradients.sink_logits},   {d->gates, &p->gradients.gates}};
    p->gradients.struct_size = sizeof p->gradients;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].input && fuzz_pick(c->in, 0, 3))
            *list[i].gradient = fuzz_output(c, MHA_F32, list[i].input->ndim, list[i].input->shape);
    if (fuzz_pick(c->in, 0, 3) == 0) p->gradients.scale = fuzz_output(c, MHA_F32, 0, NULL);
}

/* Outputs besides o on which the loss depends. */
static void give(problem_call *p, fuzz_call *c)
{
    const int64_t *o = p->outputs.o.view.shape, S = p->kinds.shape.S;
    if (fuzz_pick(c->in, 0, 1)) p->gradients.lse_gradient = fuzz_input(c, MHA_F32, 3, o);
    if (fuzz_pick(c->in, 0, 1))
        p->gradients.probabilities_gradient =
            fuzz_input(c, MHA_F32, 4, (int64_t[]){o[0], o[1], o[2], S});
    if (fuzz_pick(c->in, 0, 1))
        p->gradients.average_probabilities_gradient =
            fuzz_input(c, MHA_F32, 3, (int64_t[]){o[0], o[2], S});
    if (fuzz_pick(c->in, 0, 1)) p->gradients.flags |= MHA_GRADIENTS_DROPPED_PROBABILITIES;
}

/* The forward call's outputs are inputs now, in a separate list. */
static void check_backward(problem_call *p)
{
    fuzz_call *c = malloc(sizeof *c);
    fuzz_must(c != NULL, "out of memory");
    fuzz_call_make(c, p->call.in);
    for (int i = 0; i < p->call.count; i++)
        if (!p->call.output[i] || p->call.all[i] == &p->outputs.o ||
            p->call.all[i] == &p->outputs.each[EXTRA_LSE])
            fuzz_call_add(c, p->call.all[i], false);
    p->o_gradient = fuzz_input(c, fuzz_float(c), p->outputs.o.view.ndim, p->outputs.o.view.shape);
    want(p, c);
    give(p, c);
    fuzz_call_spoil(c);
    if (fuzz_call_backed(c)) fuzz_call_check(c, backward, p);
    fuzz_call_free(c);
    free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part in = {data, size};
    problem_call *p = calloc(1, sizeof *p);
    fuzz_must(p != NULL, "out of memory");
    make(p, &in);
    const mha_status said = explain(fuzz_context(1, 0), p);
    fuzz_must_speak(said);
    if (fuzz_call_backed(&p->call)) {
        const mha_status status = fuzz_call_check(&p->call, forward, p);
        fuzz_must(said == MHA_OK || status != MHA_OK, "explain refuses what forward takes");
        if (status == MHA_OK && p->outputs.has & 1u << EXTRA_LSE && fuzz_pick(&in, 0, 1))
            check_backward(p);
    }
    fuzz_call_free(&p->call);
    extras_free(&p->outputs);
    kinds_free(&p->kinds);
    free(p->desc);
    free(p->wanted);
    free(p);
    return 0;
}
