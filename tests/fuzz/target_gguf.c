/* A GGUF file. Accepted tensors must be within the file, be found by name, and decode to the same
 * numbers in one piece and in many. A model then reads the file's metadata, weights and tokenizer,
 * and runs with two tokens. The last bit selects the arithmetic. FUZZ_CUT separates the parts of a
 * split model. */
#include "fuzz.h"

#include <multihead/gguf.h>
#include <multihead/model.h>

#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("b")

enum { MOST = 1024, MOST_WIDTH = 1 << 16 }; /* maximum number of decoded elements */

static void look_at_tensor(const mha_gguf *file, int64_t index, fuzz_part input)
{
    static float whole[MOST], pieces[MOST];
    mha_gguf_tensor tensor;
    fuzz_must(mha_gguf_describe(file, index, &tensor) == MHA_OK, "a tensor without description");
    fuzz_must(mha_gguf_find(file, tensor.name) == index, "a name that is not found");
    fuzz_must(tensor.bytes > 0 && tensor.offset > 0 &&
                  (size_t)(tensor.offset + tensor.bytes) <= input.size,
              "data outside the file");
    fuzz_must(memcmp(tensor.data, input.data + tensor.offset, (size_t)tensor.bytes) == 0,
              "other bytes than the file's");
    int64_t count = 1;
    for (int i = 0; i < MHA_GGUF_MAX_DIMS; i++) count *= tensor.dims[i];
    fuzz_must(count == tensor.count, "another number of elements");
    if (count > MOST) count = MOST;
    const mha_status status = mha_gguf_read(file, index, tensor.count - count, count, whole);
    fuzz_must_speak(status);
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < 23 ? count - at : 23;
        fuzz_must(status == mha_gguf_read(file, index, tensor.count - count + at, n, pieces + at),
                  "another status");
    }
    fuzz_must(status != MHA_OK || memcmp(whole, pieces, (size_t)count * sizeof *whole) == 0,
              "pieces that are not the whole");
    fuzz_must(mha_gguf_read(file, index, tensor.count, 1, whole) == MHA_ERR_SHAPE,
              "an element beyond the last");
}

static void look_at_value(const mha_gguf *file, int64_t index, fuzz_part input)
{
    mha_gguf_value value;
    const char *text = NULL;
    size_t size = 0;
    int64_t integer;
    double real;
    bool yes;
    fuzz_must(mha_gguf_value_at(file, index, &value) == MHA_OK, "a key without value");
    fuzz_must(mha_gguf_key_find(file, value.key) == index, "a key that is not found");
    fuzz_must((size_t)value.count < input.size, "more elements than bytes");
    for (int64_t i = 0; i < value.count; i++) {
        fuzz_must_speak(mha_gguf_integer(&value, i, INT64_MIN, INT64_MAX, &integer));
        fuzz_must_speak(mha_gguf_real(&value, i, &real));
        fuzz_must_speak(mha_gguf_bool(&value, i, &yes));
        const mha_status status = mha_gguf_string(&value, i, &text, &size);
        fuzz_must_speak(status);
        if (status != MHA_OK) continue;
        fuzz_must(value.starts[i] <= input.size && size <= input.size - value.starts[i] &&
                      memcmp(text, input.data + value.starts[i], size) == 0,
                  "a string outside the file");
    }
    fuzz_must(mha_gguf_string(&value, value.count, &text, &size) != MHA_OK,
              "an element beyond the last");
}

static void forward(mha_context *context, const mha_transformer *transformer)
{
    mha_transformer_desc desc;
    mha_transformer_describe(transformer, &desc);
    if (desc.vocab_size > MOST_WIDTH || desc.embed_dim > MOST_WIDTH || desc.ff_dim > MOST_WIDTH)
        return;
    const int64_t length = desc.max_length < 2 ? desc.max_length : 2;
    int32_t ids[2] = {0, (int32_t)(desc.vocab_size - 1)};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, length});
    float *memory = malloc((size_t)(length * desc.vocab_size) * sizeof *memory);
    fuzz_must(memory != NULL, "out of memory");
    const mha_tensor logits =
        mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){1, length, desc.vocab_size});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    fuzz_must_speak(
        mha_transformer_forward(context, transformer, &input, NULL, &logits, NULL, NULL));
    free(memory);
}

static void look_at_model(const char *path, fuzz_part input)
{
    mha_model *model;
    mha_context *context = fuzz_context(1, 0);
    const mha_model_options options = {
        .struct_size = sizeof options,
        .compute = (mha_compute)(input.data[input.size - 1] % (MHA_COMPUTE_TILES + 1))};
    mha_status status = mha_model_load(context, path, &options, &model);
    fuzz_must_speak(status);
    if (status == MHA_ERR_UNSUPPORTED) status = mha_model_load(context, path, NULL, &model);
    if (status != MHA_OK) return;
    mha_encoding e = {.struct_size = sizeof e};
    fuzz_must_speak(
        mha_tokenizer_encode(mha_model_tokenizer(model), NULL, "a b\n", 4, NULL, 0, &e));
    mha_encoding_free(&e);
    forward(context, mha_model_transformer(model));
    mha_model_destroy(model);
}

/* A model in two parts, which both open. */
static void look_at_parts(const fuzz_part *parts)
{
    static const char *const names[] = {"in-00001-of-00002.gguf", "in-00002-of-00002.gguf"};
    char path[FUZZ_PATH_BYTES];
    for (int i = 0; i < 2; i++) fuzz_write(names[i], parts[i]);
    for (int i = 0; i < 2; i++) {
        mha_gguf *file;
        fuzz_path(names[i], path);
        const mha_status status = mha_gguf_open(path, &file);
        fuzz_must_speak(status);
        if (status != MHA_OK) continue;
        for (int64_t k = 0; k < mha_gguf_count(file); k++) {
            mha_gguf_tensor tensor;
            float x;
            fuzz_must(mha_gguf_describe(file, k, &tensor) == MHA_OK,
                      "a tensor without description");
            fuzz_must(mha_gguf_find(file, tensor.name) == k, "a name that is not found");
            fuzz_must_speak(mha_gguf_read(file, k, tensor.count - 1, 1, &x));
        }
        mha_gguf_close(file);
        look_at_model(path, parts[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    mha_gguf *file;
    const fuzz_part input = {data, size};
    fuzz_part parts[2];
    fuzz_cut(data, size, parts, 2);
    if (parts[0].size > 0 && parts[1].size > 0) {
        look_at_parts(parts);
        return 0;
    }
    fuzz_write("in.gguf", input);
    fuzz_path("in.gguf", path);
    const mha_status status = mha_gguf_open(path, &file);
    fuzz_must_speak(status);
    if (status != MHA_OK) return 0;
    for (int64_t i = 0; i < mha_gguf_count(file); i++) look_at_tensor(file, i, input);
    for (int64_t i = 0; i < mha_gguf_key_count(file); i++) look_at_value(file, i, input);
    fuzz_must(mha_gguf_find(file, "\x01\x02") < 0, "a name that no file has");
    mha_gguf_close(file);
    look_at_model(path, input);
    return 0;
}
