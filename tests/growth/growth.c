/* The counted work: growth KIND PATH [KIND PATH ...] reads each file or folder once, according to
 * its kind. growth.py runs the program under callgrind, which dumps the instructions since the last
 * dump at every return of mark(). The input must be valid, otherwise the count is meaningless. */
#include <multihead/multihead.h>

#include <multihead/checkpoint.h>
#include <multihead/gguf.h>
#include <multihead/io.h>
#include <multihead/model.h>
#include <multihead/state.h>
#include <multihead/tokenizer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mark(void);

__attribute__((noinline)) void mark(void)
{
    __asm__ volatile(""); /* a call without effect would be optimised away */
}

static void must(mha_status status)
{
    if (status == MHA_OK) return;
    fprintf(stderr, "growth: %s: %s\n", mha_status_text(status), mha_error_detail());
    exit(1);
}

/* Opens the file and finds every tensor by name. */
static void names(mha_context *context, const char *path)
{
    mha_safetensors *file;
    (void)context;
    must(mha_safetensors_open(path, &file));
    for (int64_t i = 0; i < mha_safetensors_count(file); i++)
        if (mha_safetensors_find(file, mha_safetensors_name(file, i)) != i) exit(1);
    mha_safetensors_close(file);
}

/* Does the same for a GGUF file and its keys. */
static void gguf(mha_context *context, const char *path)
{
    mha_gguf *file;
    mha_gguf_tensor tensor;
    mha_gguf_value value;
    (void)context;
    must(mha_gguf_open(path, &file));
    for (int64_t i = 0; i < mha_gguf_count(file); i++) {
        must(mha_gguf_describe(file, i, &tensor));
        if (mha_gguf_find(file, tensor.name) != i) exit(1);
    }
    for (int64_t i = 0; i < mha_gguf_key_count(file); i++) {
        must(mha_gguf_value_at(file, i, &value));
        if (mha_gguf_key_find(file, value.key) != i) exit(1);
    }
    mha_gguf_close(file);
}

static void model(mha_context *context, const char *path)
{
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    mha_model *made;
    must(mha_model_load(context, path, &options, &made));
    mha_model_destroy(made);
}

static void checkpoint(mha_context *context, const char *path)
{
    mha_transformer *made;
    must(mha_checkpoint_load(context, path, &made));
    mha_transformer_destroy(made);
}

static void shape(mha_context *context, const char *path)
{
    mha_model_shape shape = {.struct_size = sizeof shape};
    (void)context;
    must(mha_model_read_shape(path, &shape));
}

/* Loads a module's state from a file with many other tensors. */
static void state(mha_context *context, const char *path)
{
    const mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = 2, .num_heads = 1};
    mha_module *module;
    must(mha_module_create(context, &desc, &module));
    must(mha_module_load_state(module, path, "own."));
    mha_module_destroy(module);
}

static void pieces(mha_context *context, const char *path)
{
    mha_tokenizer *made;
    (void)context;
    must(mha_tokenizer_load(path, NULL, &made));
    mha_tokenizer_destroy(made);
}

static void words(mha_context *context, const char *path)
{
    mha_vocabulary *made;
    (void)context;
    must(mha_vocabulary_load(path, &made));
    mha_vocabulary_destroy(made);
}

/* Encodes text.txt of a folder with the folder's tokenizer. */
static char *read_text(const char *folder, size_t *size)
{
    char path[4096], *text;
    snprintf(path, sizeof path, "%s/text.txt", folder);
    must(mha_file_read(path, (size_t)1 << 30, &text, size));
    return text;
}

static mha_status encode(const char *path, const mha_encode_options *options)
{
    mha_tokenizer *made;
    mha_encoding encoding = {.struct_size = sizeof encoding};
    size_t size;
    char *text = read_text(path, &size);
    must(mha_tokenizer_load(path, NULL, &made));
    const mha_status status = mha_tokenizer_encode(made, options, text, size, NULL, 0, &encoding);
    mha_encoding_free(&encoding);
    mha_tokenizer_destroy(made);
    mha_file_free(text);
    return status;
}

static void encode_pieces(mha_context *context, const char *path)
{
    (void)context;
    must(encode(path, NULL));
}

/* Encodes for a model of 64 positions. */
static void encode_first(mha_context *context, const char *path)
{
    const mha_encode_options options = {.struct_size = sizeof options,
                                        .flags = MHA_ENCODE_STOP,
                                        .max_length = 64,
                                        .truncation = MHA_TRUNCATE_LONGEST_FIRST};
    (void)context;
    must(encode(path, &options));
}

/* Inputs that request more than the text allows. */
static void encode_refused(mha_context *context, const char *path)
{
    (void)context;
    if (encode(path, NULL) != MHA_ERR_SIZE) must(MHA_ERR_FORMAT);
}

static void encode_words(mha_context *context, const char *path)
{
    mha_vocabulary *made;
    int64_t count;
    size_t size;
    char *text = read_text(path, &size);
    (void)context;
    int32_t *ids = malloc((size + 1) * sizeof *ids);
    if (!ids) exit(1);
    must(mha_vocabulary_load(path, &made));
    must(mha_vocabulary_encode(made, text, size, ids, (int64_t)size + 1, &count));
    mha_vocabulary_destroy(made);
    mha_file_free(text);
    free(ids);
}

static void npy(mha_context *context, const char *path)
{
    mha_npy *array;
    (void)context;
    must(mha_npy_read(path, &array));
    mha_npy_destroy(array);
}

static const struct {
    const char *name;
    void (*run)(mha_context *context, const char *path);
} kinds[] = {{"names", names},
             {"gguf", gguf},
             {"model", model},
             {"checkpoint", checkpoint},
             {"shape", shape},
             {"state", state},
             {"pieces", pieces},
             {"words", words},
             {"encode_pieces", encode_pieces},
             {"encode_first", encode_first},
             {"encode_refused", encode_refused},
             {"encode_words", encode_words},
             {"npy", npy}};

int main(int count, char **arguments)
{
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 1};
    mha_context *context;
    must(mha_context_create(&desc, &context));
    for (int i = 1; i + 1 < count; i += 2) {
        size_t kind = 0;
        while (kind < sizeof kinds / sizeof kinds[0] && strcmp(kinds[kind].name, arguments[i]) != 0)
            kind++;
        if (kind == sizeof kinds / sizeof kinds[0]) return 2;
        mark();
        kinds[kind].run(context, arguments[i + 1]);
    }
    mark();
    mha_context_destroy(context);
    return 0;
}
