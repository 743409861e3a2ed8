/* Next-token predictions of a run and of its baseline. */
#include "study/trial.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The logits of a row, in scratch if they are NULL, and the log of the sum of their
 * exponentials. */
typedef struct prediction {
    float *logits; /* [V] */
    double log_sum;
} prediction;

static mha_status predict(const mha_trials *trials, const mhai_kept_run *run, int64_t row,
                          prediction *out)
{
    const int64_t width = trials->desc.embed_dim, vocab = trials->desc.vocab_size;
    double most = -INFINITY, sum = 0;
    if (!out->logits)
        MHA_TRY(mha_scratch_alloc(trials->context, vocab, sizeof *out->logits, &out->logits));
    const mha_tensor hidden = mha_tensor_contiguous(run->hidden + row * width, MHA_F32, 2,
                                                    (const int64_t[]){1, width}),
                     logits = mha_tensor_contiguous(out->logits, MHA_F32, 2,
                                                    (const int64_t[]){1, vocab});
    MHA_TRY(mha_transformer_logits(trials->context, trials->transformer, &hidden, &logits));
    for (int64_t v = 0; v < vocab; v++) {
        if (!isfinite(out->logits[v]))
            return mha_fail(MHA_ERR_MODEL,
                            "the model's logits are not finite: its weights are damaged or "
                            "overflow float32");
        most = fmax(most, (double)out->logits[v]);
    }
    for (int64_t v = 0; v < vocab; v++) sum += mha_exp((double)out->logits[v] - most);
    out->log_sum = mha_log(sum) + most;
    return MHA_OK;
}

static double log_chance(const prediction *p, int32_t token)
{
    return (double)p->logits[token] - p->log_sum;
}

/* Find the largest logits; ties are ordered by token id. Returns their number. */
static int find_top(const prediction *p, int64_t vocab, int32_t top[MHA_TRIAL_TOP])
{
    int count = 0;
    for (int32_t v = 0; v < vocab; v++) {
        int at = count;
        while (at > 0 && p->logits[v] > p->logits[top[at - 1]]) at--;
        if (at == MHA_TRIAL_TOP) continue;
        if (count < MHA_TRIAL_TOP) count++;
        memmove(top + at + 1, top + at, (size_t)(count - 1 - at) * sizeof *top);
        top[at] = v;
    }
    return count;
}

static void add_top(const mha_trials *trials, const prediction *p, mha_trial_next *next)
{
    int32_t top[MHA_TRIAL_TOP];
    const int count = find_top(p, trials->desc.vocab_size, top);
    for (int i = 0; i < count; i++) {
        bool known = false;
        for (int64_t j = 0; j < next->count; j++) known = known || next->tokens[j].id == top[i];
        if (!known) next->tokens[next->count++].id = top[i];
    }
}

static void compare(const mha_trials *trials, const prediction *now, const prediction *whole,
                    mha_trial_next *next)
{
    for (int64_t i = 0; i < next->count; i++) {
        mha_trial_choice *c = &next->tokens[i];
        c->logit = now->logits[c->id];
        c->logit_whole = whole->logits[c->id];
        c->p = mha_exp(log_chance(now, c->id));
        c->p_whole = mha_exp(log_chance(whole, c->id));
    }
    for (int32_t v = 0; next->changed && v < trials->desc.vocab_size; v++) {
        const double before = log_chance(whole, v);
        next->divergence += mha_exp(before) * (before - log_chance(now, v));
    }
}

/* The sampling probability of each token: softmax of the top_k logits divided by temperature. */
static void draw(const mha_trials *trials, const mha_trial *run, const prediction *now,
                 mha_trial_next *next)
{
    int32_t top[MHA_TRIAL_TOP];
    const int count = find_top(now, trials->desc.vocab_size, top);
    const double most = (double)now->logits[top[0]],
                 t = run->temperature > 0 ? run->temperature : 1;
    double sum = 0;
    if (run->top_k > 0)
        for (int i = 0; i < count && i < run->top_k; i++)
            sum += mha_exp(((double)now->logits[top[i]] - most) / t);
    for (int32_t v = 0; run->top_k == 0 && v < trials->desc.vocab_size; v++)
        sum += mha_exp(((double)now->logits[v] - most) / t);
    for (int64_t i = 0; i < next->count; i++) {
        bool kept = run->top_k == 0;
        for (int k = 0; k < count && k < run->top_k; k++)
            kept = kept || top[k] == next->tokens[i].id;
        if (kept)
            next->tokens[i].p_drawn = mha_exp(((double)next->tokens[i].logit - most) / t) / sum;
    }
}

static mha_status fill(mha_trials *trials, const mha_trial *run, mha_trial_next *next)
{
    const mhai_kept_run *whole;
    prediction now = {0}, before = {0};
    MHA_TRY(mhai_trial_whole(trials, run, &whole));
    next->changed = whole != &trials->now;
    MHA_TRY(predict(trials, &trials->now, next->row, &now));
    add_top(trials, &now, next);
    if (next->changed) {
        MHA_TRY(predict(trials->options.baseline ? trials->options.baseline : trials, whole,
                        next->row, &before));
        add_top(trials, &before, next);
    }
    compare(trials, &now, next->changed ? &before : &now, next);
    draw(trials, run, &now, next);
    return MHA_OK;
}

mha_status mha_trials_predict(mha_trials *trials, const mha_trial *given, int64_t row,
                              mha_trial_next *next)
{
    mha_trial run;
    if (!next) return mha_fail(MHA_ERR_NULL, "trial: next is NULL");
    MHA_TRY(mhai_trial_read(trials, given, &run));
    mha_trial_next made = {.row = row < 0 ? run.count - 1 : row};
    const mha_trials *base = trials->options.baseline ? trials->options.baseline : trials;
    if (!(base->desc.flags & MHA_TRANSFORMER_NO_OUTPUT) &&
        base->desc.flags & MHA_TRANSFORMER_CAUSAL) {
        if (made.row >= run.count)
            return mha_fail(MHA_ERR_MODEL, "row: the text has %" PRId64 " tokens", run.count);
        MHA_TRY(mha_trials_run(trials, given, -1, NULL, NULL, NULL));
        const mha_scratch_mark mark = mha_scratch_top(trials->context);
        const mha_status status = fill(trials, &run, &made);
        mha_scratch_release(trials->context, mark);
        MHA_TRY(status);
    }
    *next = made;
    return MHA_OK;
}

mha_status mha_trials_logits(mha_trials *trials, const mha_trial *given, float *logits)
{
    mha_trial run;
    prediction out = {.logits = logits};
    if (!logits) return mha_fail(MHA_ERR_NULL, "mha_trials_logits: logits is NULL");
    MHA_TRY(mhai_trial_read(trials, given, &run));
    if (trials->desc.flags & MHA_TRANSFORMER_NO_OUTPUT)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_trials_logits: the transformer has no output layer");
    MHA_TRY(mha_trials_run(trials, given, -1, NULL, NULL, NULL));
    return predict(trials, &trials->now, run.count - 1, &out);
}
