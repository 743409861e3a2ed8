/* Functions around attention: linear attention, merging, modules forward and backward, rotation, norm and conversion of
 * tensors. */
#include "fuzz_call.h"

#include <multihead/linear_attention.h>
#include <multihead/merge.h>
#include <multihead/module_backward.h>

#include <stdlib.h>
#include <string.h>

typedef struct sizes {
    int64_t B, H, Hk, T, S, D, Dv;
} sizes;

static sizes some_sizes(fuzz_part *in)
{
    static const int64_t widths[] = {1, 2, 3, 4, 8, 16, 17, 33};
    sizes n = {.B = fuzz_pick(in, 0, 3), .Hk = fuzz_pick(in, 1, 2)};
    n.H = n.Hk * fuzz_pick(in, 1, 2);
    n.T = fuzz_pick(in, 0, 7);
    n.S = fuzz_pick(in, 0, 15) ? fuzz_pick(in, 0, 12) : fuzz_pick(in, 60, 70);
    n.D = widths[fuzz_pick(in, 0, 7)];
    n.Dv = widths[fuzz_pick(in, 0, 7)];
    return n;
}

static int64_t some_offset(fuzz_part *in)
{
    static const int64_t odd[] = {INT64_MAX, INT64_MIN, -1};
    const int choice = (int)fuzz_pick(in, 0, 15);
    return choice < 3 ? odd[choice] : fuzz_pick(in, 0, 8);
}

/* ---- linear attention ---------------------------------------------------------------------- */

typedef struct linear_case {
    mha_linear_attention_desc *desc;
    mha_linear_attention_outputs *outputs;
    mha_linear_attention_gradients *gradients;
    mha_tensor *q, *k, *v, *o, *o_gradient;
} linear_case;

static mha_status linear_forward(mha_context *context, void *user)
{
    linear_case *x = user;
    return mha_linear_attention_forward(context, x->desc, x->q, x->k, x->v, x->o, x->outputs);
}

static mha_status linear_backward(mha_context *context, void *user)
{
    linear_case *x = user;
    return mha_linear_attention_backward(context, x->desc, x->q, x->k, x->v, x->o_gradient,
                                         x->gradients);
}

static void fuzz_linear(fuzz_call *c)
{
    const sizes n = some_sizes(c->in);
    const int64_t s_shape[] = {n.B, n.Hk, n.D, n.Dv}, z_shape[] = {n.B, n.Hk, n.D};
    int64_t *numbers = malloc(8 * sizeof *numbers);
    fuzz_must(numbers != NULL, "out of memory");
    for (int i = 0; i < 8; i++) numbers[i] = fuzz_pick(c->in, 0, n.S < 1 ? 1 : n.S);
    const unsigned has = (unsigned)fuzz_take(c->in, 1);
    const bool back = has & 64;
    c->in_place = !back; /* states */
    mha_linear_attention_desc desc = {.flags = has & 1};
    mha_linear_attention_outputs outputs = {.struct_size = 0};
    mha_linear_attention_gradients gradients = {.flags = 0};
    linear_case x = {.q = fuzz_input(c, fuzz_float(c), 4, (int64_t[]){n.B, n.H, n.T, n.D}),
                     .k = fuzz_input(c, fuzz_float(c), 4, (int64_t[]){n.B, n.Hk, n.S, n.D}),
                     .v = fuzz_input(c, fuzz_float(c), 4, (int64_t[]){n.B, n.Hk, n.S, n.Dv})};
    if (has & 2) desc.q_offset = some_offset(c->in);
    if (has & 4) desc.q_offsets = numbers;
    if (has & 8) desc.key_lengths = numbers + 4;
    if (has & 16) {
        desc.state_s = fuzz_input(c, MHA_F32, 4, s_shape);
        desc.state_z = fuzz_input(c, MHA_F32, 3, z_shape);
    }
    if (back) {
        x.o_gradient = fuzz_input(c, fuzz_float(c), 4, (int64_t[]){n.B, n.H, n.T, n.Dv});
        gradients.q = fuzz_output(c, MHA_F32, 4, x.q->shape);
        gradients.k = fuzz_output(c, MHA_F32, 4, x.k->shape);
        if (has & 128) gradients.v = fuzz_output(c, MHA_F32, 4, x.v->shape);
        if (has & 32) gradients.state_s = fuzz_output(c, MHA_F32, 4, s_shape);
    } else {
        x.o = fuzz_output(c, fuzz_float(c), 4, (int64_t[]){n.B, n.H, n.T, n.Dv});
        if (has & 32) outputs.state_s = fuzz_output(c, MHA_F32, 4, s_shape);
        if (has & 128) outputs.state_z = fuzz_output(c, MHA_F32, 3, z_shape);
    }
    fuzz_call_spoil(c);
    x.desc = fuzz_struct(c, &desc, sizeof desc);
    x.outputs = fuzz_struct(c, &outputs, sizeof outputs);
    x.gradients = fuzz_struct(c, &gradients, sizeof gradients);
    if (fuzz_call_backed(c)) fuzz_call_check(c, back ? linear_backward : linear_forward, &x);
    free(numbers), free(x.desc), free(x.outputs), free(x.gradients);
}

/* ---- merge --------------------------------------------------------------------------------- */

typedef struct merge_case {
    mha_attention_part parts[4];
    int64_t count;
    mha_tensor *o, *lse;
} merge_case;

static mha_status merge(mha_context *context, void *user)
{
    const merge_case *x = user;
    return mha_attention_merge(context, x->parts, x->count, x->o, x->lse);
}

static void fuzz_merge(fuzz_call *c)
{
    const sizes n = some_sizes(c->in);
    const int64_t o[] = {n.B, n.H, n.T, n.Dv}, lse[] = {n.B, n.H, n.T};
    c->in_place = true;
    merge_case x = {.count = fuzz_pick(c->in, -1, 4)};
    for (int i = 0; i < x.count; i++)
        x.parts[i] =
            (mha_attention_part){fuzz_input(c, MHA_F32, 4, o), fuzz_input(c, MHA_F32, 3, lse)};
    x.o = fuzz_output(c, MHA_F32, 4, o);
    if (fuzz_pick(c->in, 0, 1)) x.lse = fuzz_output(c, MHA_F32, 3, lse);
    fuzz_call_spoil(c);
    if (fuzz_call_backed(c)) fuzz_call_check(c, merge, &x);
}

/* ---- modules ------------------------------------------------------------------------------- */

enum { MOST_PARAMETERS = 16 };

typedef struct module_case {
    mha_module *module;
    mha_tensor parameters[MOST_PARAMETERS]; /* in the order of mha_module_parameter_at() */
    bool borrowed[MOST_PARAMETERS];
    mha_module_call call;
    mha_attention_desc *attention;
    mha_module_outputs outputs;
    const mha_tensor *out_gradient;
    mha_module_gradients gradients;
} module_case;

static mha_status module_run(mha_context *context, void *user)
{
    module_case *x = user;
    return mha_module_run(context, x->module, &x->call);
}

static void set_parameter(module_case *x, int64_t i, const mha_module_parameter *p)
{
    fuzz_must(mha_module_set_parameter(x->module, p->name, &x->parameters[i]) == MHA_OK,
              "no such parameter");
    x->borrowed[i] = false;
}

/* Borrowed parameters are in read-only memory. The module must not read views that exceed their memory. */
static void borrow_parameter(fuzz_call *c, module_case *x, int64_t i, const mha_module_parameter *p)
{
    guarded *value = c->all[c->count - 1];
    mha_tensor view = value->view;
    if (fuzz_pick(c->in, 0, 3) == 0) fuzz_spoil_tensor(c->in, &view);
    const mha_status status = mha_module_borrow_parameter(x->module, p->name, &view);
    fuzz_must_speak(status);
    if (status != MHA_OK) return; /* the result must equal the values that were set */
    if (!fuzz_backed(&view, value->map, value->bytes)) {
        set_parameter(x, i, p);
        return;
    }
    guarded_protect(value, true);
    x->parameters[i] = view; /* the memory may have different numbers */
    x->borrowed[i] = true;
}

static void set_parameters(fuzz_call *c, module_case *x)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(x->module, i, &p); i++) {
        fuzz_must(i < MOST_PARAMETERS, "more parameters than this target has room for");
        x->parameters[i] = *fuzz_input(c, fuzz_float(c), p.ndim, p.shape);
        set_parameter(x, i, &p);
        if (fuzz_pick(c->in, 0, 1)) borrow_parameter(c, x, i, &p);
    }
    c->count = 0; /* the module has copies, so these are no arguments of later calls */
}

/* Replaces borrowed parameters by copies. Returns whether any parameter was borrowed. */
static bool return_borrowed(module_case *x)
{
    bool any = false;
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(x->module, i, &p); i++) {
        any |= x->borrowed[i];
        if (x->borrowed[i]) set_parameter(x, i, &p);
    }
    return any;
}

static mha_module *make_module(fuzz_call *c, const sizes *n, mha_module_desc *desc)
{
    mha_module *module = NULL;
    *desc = (mha_module_desc){.struct_size = sizeof *desc,
                              .flags = (uint32_t)fuzz_take(c->in, 1) & 0x7F,
                              .embed_dim = fuzz_pick(c->in, 0, 9),
                              .num_heads = n->H,
                              .kv_heads = n->Hk,
                              .head_dim = n->D,
                              .value_head_dim = n->Dv,
                              .key_dim = fuzz_pick(c->in, 0, 4),
                              .value_dim = fuzz_pick(c->in, 0, 4)};
    if (desc->flags & MHA_MODULE_ROPE) {
        desc->rope_pairing = (mha_rope_pairing)fuzz_pick(c->in, 0, 2);
        desc->rotary_dim = fuzz_pick(c->in, 0, 9);
        desc->rope_base = fuzz_pick(c->in, 0, 3) ? 0 : fuzz_double(c->in);
    }
    if (desc->flags & MHA_MODULE_QK_NORM) desc->qk_norm = (mha_qk_norm_kind)fuzz_pick(c->in, 0, 2);
    void *sized = fuzz_struct(c, desc, sizeof *desc);
    const mha_status status = mha_module_create(fuzz_context(1, 0), sized, &module);
    free(sized);
    fuzz_must_speak(status);
    if (status != MHA_OK) return NULL;
    mha_module_describe(module, desc);
    return module;
}

static mha_status module_backward(mha_context *context, void *user)
{
    module_case *x = user;
    return mha_module_backward(context, x->module, &x->call, x->out_gradient, &x->gradients);
}

/* After a valid forward call, its outputs become inputs. */
static void module_check_backward(fuzz_call *c, module_case *x)
{
    fuzz_call *back = malloc(sizeof *back);
    fuzz_must(back != NULL, "out of memory");
    fuzz_call_make(back, c->in);
    mha_tensor views[FUZZ_MOST_TENSORS]; /* made invalid again, then restored */
    for (int i = 0; i < c->count; i++) views[i] = c->all[i]->view;
    const mha_tensor *unread[] = {x->call.out, x->outputs.probabilities,
                                  x->outputs.average_probabilities};
    for (int i = 0; i < c->count; i++) {
        const mha_tensor *view = &c->all[i]->view;
        if (view != unread[0] && view != unread[1] && view != unread[2])
            fuzz_call_add(back, c->all[i], false);
    }
    x->out_gradient = fuzz_input(back, fuzz_float(back), x->call.out->ndim, x->call.out->shape);
    x->gradients = (mha_module_gradients){
        .struct_size = sizeof x->gradients,
        .query = fuzz_output(back, MHA_F32, x->call.query->ndim, x->call.query->shape)};
    if (fuzz_pick(c->in, 0, 1))
        x->gradients.key = fuzz_output(back, MHA_F32, x->call.key->ndim, x->call.key->shape);
    fuzz_call_spoil(back);
    if (fuzz_call_backed(back)) fuzz_call_check(back, module_backward, x);
    for (int i = 0; i < c->count; i++) c->all[i]->view = views[i];
    fuzz_call_free(back);
    free(back);
}

static void want_outputs(fuzz_call *c, module_case *x, const sizes *n)
{
    const unsigned has = fuzz_pick(c->in, 0, 1) ? 1 : (unsigned)fuzz_pick(c->in, 0, 7);
    const int64_t q[] = {n->B, n->H, n->T, n->D}, k[] = {n->B, n->Hk, n->S, n->D};
    const int64_t v[] = {n->B, n->Hk, n->S, n->Dv}, heads[] = {n->B, n->H, n->T, n->Dv};
    const int64_t p[] = {n->B, n->H, n->T, n->S}, average[] = {n->B, n->T, n->S};
    x->outputs.struct_size = sizeof x->outputs;
    if (has & 1) x->outputs.q = fuzz_output(c, MHA_F32, 4, q);
    if (has & 1) x->outputs.k = fuzz_output(c, MHA_F32, 4, k);
    if (has & 1) x->outputs.v = fuzz_output(c, MHA_F32, 4, v);
    if (has & 1) x->outputs.heads = fuzz_output(c, MHA_F32, 4, heads);
    if (has & 1) x->outputs.lse = fuzz_output(c, MHA_F32, 3, q);
    if (has & 2) x->outputs.probabilities = fuzz_output(c, MHA_F32, 4, p);
    if (has & 4) x->outputs.average_probabilities = fuzz_output(c, MHA_F32, 3, average);
    x->call.outputs = &x->outputs;
}

static void fuzz_module(fuzz_call *c)
{
    sizes n = some_sizes(c->in);
    mha_module_desc d;
    module_case x = {.module = make_module(c, &n, &d)};
    if (!x.module) return;
    set_parameters(c, &x);
    const mha_attention_desc desc = {.flags = fuzz_pick(c->in, 0, 1) ? MHA_ATTENTION_CAUSAL : 0,
                                     .q_offset = fuzz_pick(c->in, 0, 3) ? 0 : some_offset(c->in),
                                     .softcap = (float)fuzz_pick(c->in, 0, 1)};
    x.attention = fuzz_struct(c, &desc, sizeof desc);
    x.call = (mha_module_call){
        .struct_size = sizeof x.call,
        .attention = fuzz_pick(c->in, 0, 1) ? x.attention : NULL,
        .query = fuzz_input(c, fuzz_float(c), 3, (int64_t[]){n.B, n.T, d.embed_dim}),
        .key = fuzz_input(c, fuzz_float(c), 3, (int64_t[]){n.B, n.S, d.key_dim}),
        .value = fuzz_input(c, fuzz_float(c), 3, (int64_t[]){n.B, n.S, d.value_dim}),
        .out = fuzz_output(c, fuzz_float(c), 3, (int64_t[]){n.B, n.T, d.embed_dim})};
    n.S += (d.flags & MHA_MODULE_BIAS_KV ? 1 : 0) + (d.flags & MHA_MODULE_ZERO_ATTN ? 1 : 0);
    sizes keys = n;
    want_outputs(c, &x, &keys);
    fuzz_call_spoil(c);
    if (fuzz_call_backed(c) && fuzz_call_check(c, module_run, &x) == MHA_OK) {
        if (x.outputs.q) module_check_backward(c, &x);
        if (return_borrowed(&x) && !c->resized)
            fuzz_call_compare(c, module_run, &x, "borrowed weights give other bits than set ones");
    }
    mha_module_destroy(x.module);
    free(x.attention);
}

/* ---- tensors ------------------------------------------------------------------------------- */

typedef struct tensor_case {
    int kind;
    mha_rope_desc *rope;
    mha_tensor *x, *y, *weight;
    float epsilon;
} tensor_case;

static mha_status on_tensors(mha_context *context, void *user)
{
    const tensor_case *t = user;
    if (t->kind == 0) return mha_tensor_convert(t->x, t->y);
    if (t->kind == 1) return mha_rope_apply(context, t->rope, t->x, t->y);
    return mha_qk_norm(context, (mha_qk_norm_kind)(t->kind - 2), t->epsilon, t->x, t->weight, t->y);
}

static void fuzz_tensors(fuzz_call *c)
{
    const sizes n = some_sizes(c->in);
    const int64_t shape[] = {n.B, n.H, n.T, n.D};
    c->in_place = true;
    tensor_case t = {.kind = (int)fuzz_pick(c->in, 0, 4)};
    const bool converts = t.kind == 0;
    const mha_rope_desc rope = {.flags = (uint32_t)fuzz_pick(c->in, 0, 2),
                                .pairing = (mha_rope_pairing)fuzz_pick(c->in, 0, 2),
                                .rotary_dim = fuzz_pick(c->in, 0, 9),
                                .base = fuzz_pick(c->in, 0, 1) ? 0 : fuzz_double(c->in),
                                .factor = fuzz_pick(c->in, 0, 1) ? 0 : fuzz_double(c->in),
                                .positions = {.start = some_offset(c->in)}};
    t.x = fuzz_input(c, converts ? fuzz_float(c) : MHA_F32, 4, shape);
    t.y = fuzz_output(c, converts ? fuzz_float(c) : MHA_F32, 4, shape);
    if (t.kind > 1) t.weight = fuzz_input(c, MHA_F32, 1, &n.D);
    t.epsilon = (float)fuzz_double(c->in);
    fuzz_call_spoil(c);
    t.rope = fuzz_struct(c, &rope, sizeof rope);
    if (fuzz_call_backed(c)) fuzz_call_check(c, on_tensors, &t);
    free(t.rope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(fuzz_call *) = {fuzz_linear, fuzz_merge, fuzz_module,
                                                 fuzz_tensors};
    fuzz_part in = {data, size};
    const int kind = (int)fuzz_pick(&in, 0, 3);
    fuzz_call *c = malloc(sizeof *c);
    fuzz_must(c != NULL, "out of memory");
    fuzz_call_make(c, &in);
    kinds[kind](c);
    fuzz_call_free(c);
    free(c);
    return 0;
}
