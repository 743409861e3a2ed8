/* What follows from a run: the next token, with the change and without it. */
#include "serve/serve_model.h"

#include "common/arena.h"
#include "common/json_out.h"
#include "common/signals.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOP = 10, MOST_SHOWN = 2 * TOP };

/* Logits of a row, and the logarithm of the sum of their exponentials. */
typedef struct prediction {
    float *logits; /* [V] */
    double log_sum;
} prediction;

typedef struct predictions {
    int64_t row, vocab;
    prediction now, whole; /* whole: all heads as they are */
    bool changed;
    double divergence;         /* of now from whole, KL(whole || now), in nats */
    int32_t shown[MOST_SHOWN]; /* the most likely of both, those of now first */
    int count;
} predictions;

static cli_exit predict(const serve_model *serve, const kept_run *run, int64_t row, prediction *out)
{
    const mha_transformer_desc *d = &serve->model.desc;
    CLI_TRY(ARENA_ALLOC(SERVE, d->vocab_size, &out->logits));
    const int64_t width = d->embed_dim;
    const mha_tensor hidden = mha_tensor_contiguous(run->hidden + row * width, MHA_F32, 2,
                                                    (const int64_t[]){1, width}),
                     logits = mha_tensor_contiguous(out->logits, MHA_F32, 2,
                                                    (const int64_t[]){1, d->vocab_size});
    CLI_TRY(cli_check(
        SERVE, mha_transformer_logits(serve->model.context, serve->model.net, &hidden, &logits)));
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < d->vocab_size; v++) {
        if (!isfinite(out->logits[v]))
            return cli_fail(
                CLI_BAD_INPUT, SERVE,
                "the model gives logits that are not finite: its weights are damaged, or "
                "too large for 32 bits");
        most = fmax(most, (double)out->logits[v]);
    }
    for (int64_t v = 0; v < d->vocab_size; v++) sum += mha_exp((double)out->logits[v] - most);
    out->log_sum = mha_log(sum) + most;
    return CLI_OK;
}

static double log_chance(const prediction *p, int32_t token)
{
    return (double)p->logits[token] - p->log_sum;
}

/* The TOP largest logits; of equal ones the lower token first. */
static void find_top(const prediction *p, int64_t vocab, int32_t top[TOP])
{
    int count = 0;
    for (int32_t v = 0; v < vocab; v++) {
        int at = count;
        while (at > 0 && p->logits[v] > p->logits[top[at - 1]]) at--;
        if (at == TOP) continue;
        if (count < TOP) count++;
        memmove(top + at + 1, top + at, (size_t)(count - 1 - at) * sizeof *top);
        top[at] = v;
    }
}

static void add_top(const prediction *p, predictions *all)
{
    int32_t top[TOP];
    const int most = all->vocab < TOP ? (int)all->vocab : TOP;
    find_top(p, all->vocab, top);
    for (int i = 0; i < most; i++) {
        bool known = false;
        for (int j = 0; j < all->count; j++) known = known || all->shown[j] == top[i];
        if (!known) all->shown[all->count++] = top[i];
    }
}

static void compare(predictions *all)
{
    for (int32_t v = 0; v < all->vocab; v++) {
        const double before = log_chance(&all->whole, v);
        all->divergence += mha_exp(before) * (before - log_chance(&all->now, v));
    }
}

/* all->vocab 0: the model predicts nothing. */
static cli_exit make_predictions(serve_model *serve, const serve_state *state,
                                 const text_tokens *tokens, predictions *all)
{
    const kept_run *whole;
    const int64_t last = tokens->list.count - 1;
    *all = (predictions){.row = state->row < 0 ? last : state->row};
    if (serve->model.desc.flags & MHA_TRANSFORMER_NO_OUTPUT || !serve->model.causal) return CLI_OK;
    if (all->row > last)
        return cli_fail(CLI_BAD_INPUT, SERVE, "row: the text has %" PRId64 " tokens", last + 1);
    CLI_TRY(serve_run_whole(serve, state, tokens, &whole));
    all->vocab = serve->model.desc.vocab_size;
    all->changed = whole != &serve->now;
    CLI_TRY(predict(serve, &serve->now, all->row, &all->now));
    all->whole = all->now;
    add_top(&all->now, all);
    if (!all->changed) return CLI_OK;
    CLI_TRY(predict(serve, whole, all->row, &all->whole));
    add_top(&all->whole, all);
    compare(all);
    return CLI_OK;
}

static cli_exit write_token(const serve_model *serve, const predictions *all, int i, json_out *json)
{
    const int32_t id = all->shown[i];
    char *text;
    CLI_TRY(text_model_token(&serve->model, id, &text));
    json_print(json, "%s\n{\"id\":%d,\"text\":", i ? "," : "", (int)id);
    json_text(json, text);
    json_number(json, mha_exp(log_chance(&all->now, id)), ",\"p\":");
    json_number(json, (double)all->now.logits[id], ",\"logit\":");
    if (all->changed) {
        json_number(json, mha_exp(log_chance(&all->whole, id)), ",\"p_whole\":");
        json_number(json, (double)all->whole.logits[id], ",\"logit_whole\":");
    }
    json_print(json, "}");
    return CLI_OK;
}

cli_exit serve_predict(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                       const mha_sink *sink)
{
    predictions all;
    json_out json = {.sink = sink};
    CLI_TRY(make_predictions(serve, state, tokens, &all));
    if (all.vocab == 0) {
        json_print(&json, ",\"next\":null");
        return cli_check(SERVE, json.status);
    }
    json_print(&json, ",\"next\":{\"row\":%" PRId64 ",\"changed\":%s", all.row,
               all.changed ? "true" : "false");
    if (all.changed) json_number(&json, all.divergence, ",\"divergence\":");
    json_print(&json, ",\"tokens\":[");
    for (int i = 0; i < all.count; i++) CLI_TRY(write_token(serve, &all, i, &json));
    json_print(&json, "]}");
    return cli_check(SERVE, json.status);
}

cli_exit serve_predict_words(serve_model *serve, const serve_state *state,
                             const text_tokens *tokens, char **words)
{
    enum { FEW = 5, ROOM = 60 };
    predictions all;
    size_t used = 0;
    *words = NULL;
    CLI_TRY(make_predictions(serve, state, tokens, &all));
    if (all.vocab == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(SERVE, FEW * (ROOM + 40), words));
    for (int i = 0; i < FEW && i < all.count; i++) {
        char *label;
        const int32_t id = all.shown[i];
        CLI_TRY(text_model_token(&serve->model, id, &label));
        const char *text = strlen(label) > ROOM ? "\u2026" : label;
        used += (size_t)snprintf(*words + used, FEW * (ROOM + 40) - used, "%s%s %.1f %%",
                                 i ? ", " : "", text, 100 * mha_exp(log_chance(&all.now, id)));
        if (all.changed)
            used += (size_t)snprintf(*words + used, FEW * (ROOM + 40) - used, " (%.1f)",
                                     100 * mha_exp(log_chance(&all.whole, id)));
    }
    return CLI_OK;
}

/* {"tokens":..,"maps":{..},"map":{..},"next":{..},"patched":..,"seconds":..} */
cli_exit serve_look(void *user, const serve_state *state, const mha_sink *sink)
{
    serve_model *serve = user;
    text_tokens tokens;
    json_out json = {.sink = sink};
    const double start = seconds_now();
    CLI_TRY(serve_encode(serve, state, &tokens));
    json_print(&json, "{\"tokens\":%" PRId64, tokens.list.count);
    if (!state->no_maps) {
        json_print(&json, ",\n\"maps\":");
        CLI_TRY(cli_check(SERVE, json.status));
        CLI_TRY(serve_write_maps(serve, state, &tokens, sink));
        CLI_TRY(serve_write_map(serve, state, &tokens, sink));
    } else {
        CLI_TRY(serve_run(serve, state, &tokens, NULL, NULL));
    }
    CLI_TRY(serve_predict(serve, state, &tokens, sink));
    json_print(&json, ",\"patched\":%" PRId64, serve->now.patched);
    json_number(&json, seconds_now() - start, ",\"seconds\":");
    json_print(&json, "}\n");
    return cli_check(SERVE, json.status);
}
