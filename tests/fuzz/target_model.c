/* A model folder: config.json and weights are loaded and run, and its shape is read like in other
 * commands. Parts: config.json, model.safetensors, vocab.txt, a text. */
#include "fuzz.h"

#include <multihead/model.h>

#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("tstt")

static void run(mha_context *context, const mha_model *model, fuzz_part text)
{
    mha_model_info info = {.struct_size = sizeof info};
    mha_encoding e = {.struct_size = sizeof e};
    const mha_tokenizer *tokenizer = mha_model_tokenizer(model);
    const mha_encode_options options = {
        .struct_size = sizeof options, .max_length = 12, .truncation = MHA_TRUNCATE_LONGEST_FIRST};
    fuzz_must(mha_model_describe(model, &info) == MHA_OK, "no description");
    mha_status status =
        mha_tokenizer_encode(tokenizer, &options, (const char *)text.data, text.size, NULL, 0, &e);
    fuzz_must_speak(status);
    if (status != MHA_OK || info.hidden_size > 4096) goto done;
    const int64_t shape[] = {1, e.count, info.hidden_size};
    const size_t bytes = (size_t)(e.count * info.hidden_size) * sizeof(float);
    float *memory = malloc(bytes + 1);
    fuzz_must(memory != NULL, "out of memory");
    memset(memory, 0xFF, bytes);
    const mha_tensor hidden = mha_tensor_contiguous(memory, MHA_F32, 3, shape);
    const mha_model_outputs outputs = {.struct_size = sizeof outputs, .last_hidden = &hidden};
    const mha_batch batch = {
        .struct_size = sizeof batch, .batch = 1, .length = e.count, .ids = e.ids};
    status = mha_model_forward(context, model, &batch, &outputs);
    fuzz_must_speak(status);
    for (size_t i = 0; i < bytes && status != MHA_OK; i++)
        fuzz_must(((unsigned char *)memory)[i] == 0xFF, "written on an error");
    free(memory);
done:
    mha_encoding_free(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part parts[4];
    mha_model *model;
    mha_model_shape shape = {.struct_size = sizeof shape};
    mha_context *context = fuzz_context(1, 0);
    fuzz_cut(data, size, parts, 4);
    fuzz_write("config.json", parts[0]);
    fuzz_write("model.safetensors", parts[1]);
    fuzz_write("vocab.txt", parts[2]);
    mha_status status = mha_model_read_shape(fuzz_folder(), &shape);
    fuzz_must_speak(status);
    fuzz_must(status != MHA_OK || (shape.heads > 0 && shape.kv_heads > 0 && shape.embed_dim > 0 &&
                                   memchr(shape.architecture, 0, sizeof shape.architecture)),
              "a shape that is none");
    status = mha_model_load(context, fuzz_folder(), NULL, &model);
    fuzz_must_speak(status);
    if (status != MHA_OK) return 0;
    mha_model *encoder = mha_model_encoder(model);
    if (encoder) run(context, encoder, parts[3]);
    run(context, model, parts[3]);
    mha_model_destroy(model);
    return 0;
}
