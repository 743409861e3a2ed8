/* What follows from a run: the next token, with the change and without it. */
#include "serve/serve_model.h"

#include "common/arena.h"
#include "common/json_out.h"
#include "common/signals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void forget(void *trials)
{
    mha_trials_destroy(trials);
}

static bool is_over(void *user)
{
    const serve_model *serve = user;
    return signals_came() || (serve->reader_left && serve->reader_left());
}

cli_exit serve_begin(serve_model *serve, double most_bytes)
{
    const mha_trials_options options = {
        .struct_size = sizeof options, .most_bytes = most_bytes, .is_over = is_over, .user = serve};
    CLI_TRY(cli_check(SERVE, mha_trials_create(serve->model.context, serve->model.net, &options,
                                               &serve->trials)));
    return arena_keep(SERVE, serve->trials, forget);
}

cli_exit serve_make_run(serve_model *serve, const serve_state *state, serve_run *run)
{
    const text_limits limits = {.most = serve->most_tokens, .fixed = true};
    *run = (serve_run){.run = {.struct_size = sizeof run->run,
                               .flags = state->at_last ? MHA_TRIAL_AT_LAST : 0,
                               .off = state->off.items,
                               .off_count = state->off.count,
                               .patched = state->patched.items,
                               .patched_count = state->patched.count}};
    CLI_TRY(text_model_encode(&serve->model, &limits, state->text, state->text_bytes, NULL, 0,
                              &run->tokens));
    run->run.tokens = run->tokens.ids;
    run->run.types = run->tokens.types;
    run->run.count = run->tokens.list.count;
    if (state->patched.count == 0) return CLI_OK;
    CLI_TRY(text_model_encode(&serve->model, &limits, state->other, state->other_bytes, NULL, 0,
                              &run->other));
    run->run.other = run->other.ids;
    run->run.other_types = run->other.types;
    run->run.other_count = run->other.list.count;
    return CLI_OK;
}

static cli_exit predict(const serve_model *serve, const serve_state *state, const serve_run *run,
                        mha_trial_next *next)
{
    return cli_check(SERVE, mha_trials_predict(serve->trials, &run->run, state->row, next));
}

static cli_exit write_token(const serve_model *serve, const mha_trial_next *next, int64_t i,
                            json_out *json)
{
    const mha_trial_choice *c = &next->tokens[i];
    char *text;
    CLI_TRY(text_model_token(&serve->model, c->id, &text));
    json_print(json, "%s\n{\"id\":%d,\"text\":", i ? "," : "", (int)c->id);
    json_text(json, text);
    json_number(json, c->p, ",\"p\":");
    json_number(json, (double)c->logit, ",\"logit\":");
    if (next->changed) {
        json_number(json, c->p_whole, ",\"p_whole\":");
        json_number(json, (double)c->logit_whole, ",\"logit_whole\":");
    }
    json_print(json, "}");
    return CLI_OK;
}

cli_exit serve_predict(serve_model *serve, const serve_state *state, const serve_run *run,
                       const mha_sink *sink)
{
    mha_trial_next next;
    json_out json = {.sink = sink};
    CLI_TRY(predict(serve, state, run, &next));
    if (next.count == 0) {
        json_print(&json, ",\"next\":null");
        return cli_check(SERVE, json.status);
    }
    json_print(&json, ",\"next\":{\"row\":%" PRId64 ",\"changed\":%s", next.row,
               next.changed ? "true" : "false");
    if (next.changed) json_number(&json, next.divergence, ",\"divergence\":");
    json_print(&json, ",\"tokens\":[");
    for (int64_t i = 0; i < next.count; i++) CLI_TRY(write_token(serve, &next, i, &json));
    json_print(&json, "]}");
    return cli_check(SERVE, json.status);
}

cli_exit serve_predict_words(serve_model *serve, const serve_state *state, const serve_run *run,
                             char **words)
{
    enum { FEW = 5, ROOM = 60 };
    mha_trial_next next;
    size_t used = 0;
    *words = NULL;
    CLI_TRY(predict(serve, state, run, &next));
    if (next.count == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(SERVE, FEW * (ROOM + 40), words));
    for (int i = 0; i < FEW && i < next.count; i++) {
        char *label;
        const mha_trial_choice *c = &next.tokens[i];
        CLI_TRY(text_model_token(&serve->model, c->id, &label));
        const char *text = strlen(label) > ROOM ? "\u2026" : label;
        used += (size_t)snprintf(*words + used, FEW * (ROOM + 40) - used, "%s%s %.1f %%",
                                 i ? ", " : "", text, 100 * c->p);
        if (next.changed)
            used += (size_t)snprintf(*words + used, FEW * (ROOM + 40) - used, " (%.1f)",
                                     100 * c->p_whole);
    }
    return CLI_OK;
}

/* {"tokens":..,"maps":{..},"map":{..},"next":{..},"patched":..,"seconds":..} */
cli_exit serve_look(void *user, const serve_state *state, const mha_sink *sink)
{
    serve_model *serve = user;
    serve_run run;
    int64_t patched;
    json_out json = {.sink = sink};
    const double start = seconds_now();
    CLI_TRY(serve_make_run(serve, state, &run));
    json_print(&json, "{\"tokens\":%" PRId64, run.run.count);
    if (!state->no_maps) {
        json_print(&json, ",\n\"maps\":");
        CLI_TRY(cli_check(SERVE, json.status));
        CLI_TRY(serve_write_maps(serve, state, &run, sink));
        CLI_TRY(serve_write_map(serve, state, &run, sink));
    } else {
        CLI_TRY(cli_check(SERVE, mha_trials_run(serve->trials, &run.run, -1, NULL, NULL, NULL)));
    }
    CLI_TRY(serve_predict(serve, state, &run, sink));
    CLI_TRY(cli_check(SERVE, mha_trials_run(serve->trials, &run.run, -1, NULL, NULL, &patched)));
    json_print(&json, ",\"patched\":%" PRId64, patched);
    json_number(&json, seconds_now() - start, ",\"seconds\":");
    json_print(&json, "}\n");
    return cli_check(SERVE, json.status);
}
