/* A transformer's folder is loaded, run and saved again. The same file is also loaded as a module's
 * parameters. Parts: config.json, model.safetensors. */
#include "fuzz.h"

#include <multihead/checkpoint.h>
#include <multihead/state.h>

#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("ts")

enum { MOST_WIDTH = 1 << 16 };

static void run(mha_context *context, mha_transformer *transformer)
{
    mha_transformer_desc desc;
    mha_activations *activations = NULL;
    mha_transformer_describe(transformer, &desc);
    const bool logits = !(desc.flags & MHA_TRANSFORMER_NO_OUTPUT);
    const int64_t width = logits ? desc.vocab_size : desc.embed_dim;
    const int64_t length = desc.max_length < 3 ? desc.max_length : 3;
    if (desc.flags & MHA_TRANSFORMER_CROSS || width > MOST_WIDTH || desc.embed_dim > MOST_WIDTH ||
        desc.ff_dim > MOST_WIDTH)
        return;
    int32_t ids[3] = {0, (int32_t)(desc.vocab_size - 1), 0};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, length});
    float *memory = malloc((size_t)(length * width) * sizeof *memory);
    fuzz_must(memory != NULL, "out of memory");
    const mha_tensor output =
        mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){1, length, width});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    mha_status status = mha_activations_create(context, transformer, length, 0, &activations);
    fuzz_must_speak(status);
    if (status == MHA_OK)
        status =
            mha_transformer_forward(context, transformer, &input, activations, &output, NULL, NULL);
    fuzz_must_speak(status);
    mha_activations_destroy(activations);
    free(memory);
}

/* Saving and loading must keep every bit. */
static void save(mha_context *context, mha_transformer *transformer)
{
    mha_transformer *again;
    char path[FUZZ_PATH_BYTES];
    const size_t bytes = (size_t)mha_transformer_size(transformer) * sizeof(float);
    fuzz_path("again", path);
    const mha_status status = mha_checkpoint_save(path, transformer, NULL);
    fuzz_must_speak(status);
    if (status != MHA_OK) return;
    fuzz_must(mha_checkpoint_load(context, path, &again) == MHA_OK,
              "what was saved cannot be loaded");
    fuzz_must(mha_transformer_size(again) == mha_transformer_size(transformer) &&
                  memcmp(mha_transformer_data(again), mha_transformer_data(transformer), bytes) ==
                      0,
              "other parameters");
    mha_transformer_destroy(again);
}

static void load_module(mha_context *context)
{
    const mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = 4, .num_heads = 2};
    char path[FUZZ_PATH_BYTES];
    mha_module *module;
    fuzz_path("model.safetensors", path);
    fuzz_must(mha_module_create(context, &desc, &module) == MHA_OK, "no module");
    fuzz_must_speak(mha_module_load_state(module, path, NULL));
    fuzz_must_speak(mha_module_load_state(module, path, "m."));
    mha_module_destroy(module);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part parts[2];
    mha_transformer *transformer;
    mha_context *context = fuzz_context(1, 0);
    fuzz_cut(data, size, parts, 2);
    fuzz_write("config.json", parts[0]);
    fuzz_write("model.safetensors", parts[1]);
    const mha_status status = mha_checkpoint_load(context, fuzz_folder(), &transformer);
    fuzz_must_speak(status);
    load_module(context);
    if (status != MHA_OK) return 0;
    run(context, transformer);
    save(context, transformer);
    mha_transformer_destroy(transformer);
    return 0;
}
