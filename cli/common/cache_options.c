/* See cache_options.h. */
#include "common/cache_options.h"

enum { SINKS = 4 }; /* default of Xiao et al. 2024 */

static const struct {
    mha_dtype type;
    mha_kv_scales scales;
} caches[] = {{MHA_F32, MHA_KV_SCALES_POSITION},
              {MHA_F16, MHA_KV_SCALES_POSITION},
              {MHA_BF16, MHA_KV_SCALES_POSITION},
              {MHA_I8, MHA_KV_SCALES_POSITION},
              {MHA_I8, MHA_KV_SCALES_CHANNEL}};
const char *const cache_names[] = {"f32", "f16", "bf16", "int8", "int8-channel", NULL};

void cache_types(int name, mha_dtype *type, mha_kv_scales *scales)
{
    *type = caches[name].type;
    *scales = caches[name].scales;
}

int64_t cache_sinks(const cache_options *options)
{
    return options->window == 0 ? 0 : options->sinks < 0 ? SINKS : options->sinks;
}

cli_exit cache_fill(const cache_options *options, mha_decoder_desc *desc)
{
    if (options->sinks >= 0 && options->window == 0)
        return cli_fail(
            CLI_USAGE,
            "--sinks: without --window every token sees all earlier ones; add --window N");
    if (caches[options->type].scales == MHA_KV_SCALES_CHANNEL && options->page % 16 != 0)
        return cli_fail(CLI_USAGE, "--page %lld: --cache int8-channel requires a multiple of 16",
                        (long long)options->page);
    if (options->streaming && options->window == 0)
        return cli_fail(
            CLI_USAGE,
            "--streaming requires --window N, at most the model's positions minus --sinks");
    if (options->streaming) desc->flags |= MHA_DECODER_STREAMING;
    cache_types(options->type, &desc->cache_type, &desc->key_scales);
    desc->page_size = options->page;
    desc->window = options->window;
    desc->sink_keys = cache_sinks(options);
    return CLI_OK;
}
