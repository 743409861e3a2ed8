/* The result of perplexity, for people and as JSON. */
#include "common/commands.h"
#include "common/files.h"
#include "common/json_out.h"
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
    cli_print(" in %" PRId64 " context%s", contexts, contexts == 1 ? "" : "s");
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
    return cli_finish_stdout(PERPLEXITY, CLI_OK);
}

static void put_int(json_out *json, const char *name, int64_t value)
{
    json_print(json, "  \"%s\": %" PRId64 ",\n", name, value);
}

static void put_real(json_out *json, const char *name, double value)
{
    json_print(json, "  \"%s\": ", name);
    json_number(json, value, "");
    json_print(json, ",\n");
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const perplexity_run *r = user;
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-perplexity\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n  \"model\": ");
    json_text(&json, r->folder);
    json_print(&json, ",\n  \"compute\": \"%s\",\n", perplexity_compute_name(r));
    json_print(&json, "  \"cache\": \"%s\",\n", perplexity_cache_name(r));
    put_int(&json, "cache_bytes", (int64_t)mha_decoder_cache_bytes(r->decoder));
    put_int(&json, "window", r->options->cache.window);
    put_int(&json, "sinks", cache_sinks(&r->options->cache));
    json_print(&json, "  \"streaming\": %s,\n", r->options->cache.streaming ? "true" : "false");
    put_int(&json, "context", r->limit);
    put_int(&json, "contexts", contexts_of(r));
    put_int(&json, "tokens", r->done);
    put_int(&json, "predicted", r->predicted);
    json_print(&json, "  \"complete\": %s,\n", r->done == r->count ? "true" : "false");
    put_real(&json, "perplexity", r->perplexity);
    put_real(&json, "perplexity_error", r->error);
    put_real(&json, "loss", r->mean);
    put_real(&json, "loss_error", r->mean_error);
    put_real(&json, "seconds", r->seconds);
    put_real(&json, "tokens_per_second", (double)r->done / r->seconds);
    json_print(&json, "  \"losses\": [");
    for (int64_t i = 0; i < r->done; i++) json_number(&json, r->losses[i], i ? ", " : "");
    json_print(&json, "]\n}\n");
    return json.status;
}

cli_exit perplexity_write_json(const perplexity_run *r)
{
    return cli_check(PERPLEXITY, files_draw("-", draw_json, r));
}
