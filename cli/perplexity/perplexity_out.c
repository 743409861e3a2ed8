/* The result of perplexity, for people and as JSON. */
#include "common/files.h"
#include "common/words.h"
#include "perplexity/perplexity.h"

#include <inttypes.h>
#include <math.h>

static int64_t contexts_of(const perplexity_run *r)
{
    return (r->done + r->limit - 1) / r->limit;
}

cli_exit perplexity_print(const perplexity_run *r)
{
    const int64_t contexts = contexts_of(r);
    cli_print("perplexity  %.4f", r->perplexity);
    if (r->predicted > 1) cli_print(" +- %.4f", r->error);
    cli_print("\nloss        %.6f", r->mean);
    if (r->predicted > 1) cli_print(" +- %.6f", r->mean_error);
    cli_print(" nats per token\ntokens      %" PRId64, r->done);
    if (r->done < r->count) cli_print(" of %" PRId64 ", interrupted,", r->count);
    cli_print(" in %" PRId64 " context%s", contexts, words_s(contexts));
    if (contexts > 1) cli_print(" of %" PRId64, r->limit);
    cli_print(", %" PRId64 " predicted\n", r->predicted);
    const cache_options *cache = &r->options->cache;
    cli_print("cache       %s, %.3f MB", perplexity_cache_name(r),
              (double)mha_decoder_cache_bytes(r->decoder) * 1e-6);
    if (cache->window > 0)
        cli_print(", window %" PRId64 " and %" PRId64 " sinks%s", cache->window, cache_sinks(cache),
                  cache->streaming ? ", positions in the cache" : "");
    cli_print("\n");
    cli_print("speed       %.1f tokens/s\n", (double)r->done / r->seconds);
    return cli_finish_stdout(CLI_OK);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    static const mha_json_field fields[] = {
        MHA_JSON_FIELD(NUMBER, perplexity_run, perplexity),
        MHA_JSON_NAMED("perplexity_error", NUMBER, perplexity_run, error),
        MHA_JSON_NAMED("loss", NUMBER, perplexity_run, mean),
        MHA_JSON_NAMED("loss_error", NUMBER, perplexity_run, mean_error),
        MHA_JSON_FIELD(NUMBER, perplexity_run, seconds),
        {0}};
    const perplexity_run *r = user;
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-perplexity");
    mha_json_text(&json, "model", r->folder);
    mha_json_text(&json, "compute", perplexity_compute_name(r));
    mha_json_text(&json, "cache", perplexity_cache_name(r));
    mha_json_integer(&json, "cache_bytes", (int64_t)mha_decoder_cache_bytes(r->decoder));
    mha_json_integer(&json, "window", r->options->cache.window);
    mha_json_integer(&json, "sinks", cache_sinks(&r->options->cache));
    mha_json_bool(&json, "streaming", r->options->cache.streaming);
    mha_json_integer(&json, "context", r->limit);
    mha_json_integer(&json, "contexts", contexts_of(r));
    mha_json_integer(&json, "tokens", r->done);
    mha_json_integer(&json, "predicted", r->predicted);
    mha_json_bool(&json, "complete", r->done == r->count);
    mha_json_fields(&json, fields, r);
    mha_json_number(&json, "tokens_per_second", (double)r->done / r->seconds);
    mha_json_numbers(&json, "losses", r->losses, r->done);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

cli_exit perplexity_write_json(const perplexity_run *r)
{
    return cli_check(files_draw("-", draw_json, r));
}
