/* Models and their tokenizers, for every subcommand that runs a text through a model:
 *
 *   folders and GGUF files           WordPiece, [CLS] text [SEP]; or byte-pair encoding
 *   folders of 'multihead train'     whole words between white space, after the token that begins
 *                                    a text; kinds llama, bert and multihead
 *   an encoder-decoder               a folder that contains the folders encoder and decoder, or BART, T5
 *                                    and Marian; FOLDER/encoder is the encoder alone
 *
 * Call text_model_open(), text_model_encode(), text_model_run().
 */
#ifndef CLI_TEXT_MODEL_H
#define CLI_TEXT_MODEL_H

#include "common/maps.h"

#include <multihead/audio.h>
#include <multihead/study.h>

typedef struct text_model {
    const char *folder;    /* for messages */
    char where[160];       /* prefix of messages about a text: "file: line 3: " */
    char *name;            /* the folder's name, as a title */
    char architecture[32]; /* model_type */
    mha_context *context;
    const mha_transport *ranks; /* the transport that divides the layers; NULL: all layers are
                                   here */
    mha_model *model;           /* owns the fields below */
    mha_transformer *net;
    mha_transformer_desc desc;
    mha_transformer *encoder; /* of an encoder-decoder, whose decoder is net; NULL: none */
    int64_t layers, heads, max_length;
    bool causal, pairs;               /* pairs: whether a second text is possible */
    const mha_tokenizer *pieces;      /* WordPiece, BPE, or ... */
    const mha_vocabulary *vocabulary; /* ... whole words; the other is NULL */
} text_model;

/* Open a folder until the subcommand ends. Errors are printed. threads 0: the default. spread: if
 * there are several ranks, divide the layers among them; all ranks then make the same calls.
 * Otherwise each rank loads all layers. */
cli_exit text_model_open(const char *folder, int64_t threads, bool spread, text_model *model);

/* The same with flags of mha_model_options. Without MHA_MODEL_IMAGES, a model that reads images is an
 * error. */
cli_exit text_model_open_for(const char *folder, int64_t threads, uint32_t flags,
                             text_model *model);

/* The same for a model that reads audio; another one is an error. encoder is not set. */
cli_exit text_model_open_audio(const char *folder, int64_t threads, text_model *model);

/* Close the model early and free its memory. */
void text_model_close(text_model *model);

/* maps_pick(), without the heads that a pruned layer lacks. */
cli_exit text_model_pick(const text_model *model, const args_texts *layers, const args_texts *heads,
                         maps_picks *picks);

/* mha_token_label(), in the arena; of another model, such as the encoder. */
cli_exit text_model_token_of(const mha_model *model, int32_t id, char **text);
cli_exit text_model_token(const text_model *model, int32_t id, char **text);

/* A text to read. */
typedef struct text_request {
    const char *folder; /* for messages */
    const char *where;  /* prefix of messages: "file: line 3: " */
    const mha_model *model;
    mha_tokens_options how;
    const char *text, *pair; /* pair NULL: none */
    size_t bytes, pair_bytes;
} text_request;

/* mha_tokens_read() in the arena. Errors are printed, with the program's advice. */
cli_exit text_read(const text_request *request, mha_tokens **tokens);

typedef struct text_limits {
    int64_t most;  /* most tokens, including special ones; 0: the model's limit */
    bool truncate; /* truncate longer texts instead of rejecting them */
} text_limits;

/* File and line of the next texts for messages; "-" is stdin. file NULL: none; line 0: the whole
 * file. */
void text_model_where(text_model *model, const char *file, int64_t line);

/* Encode a text, or a pair of texts unless pair is NULL. Texts with special tokens only are
 * rejected. Errors are printed. */
cli_exit text_model_encode(const text_model *model, const text_limits *limits, const char *text,
                           size_t bytes, const char *pair, size_t pair_bytes, mha_tokens **tokens);

/* The same for the input of model.encoder. */
cli_exit text_model_encode_source(const text_model *model, const text_limits *limits,
                                  const char *text, size_t bytes, mha_tokens **tokens);

/* Read a wav file, before the model, which may take long to load. */
cli_exit text_read_audio(const char *path, mha_audio **audio);

/* The patches of an image file. Errors are printed. */
cli_exit text_model_read_image(const text_model *model, const char *path, mha_tokens **tokens);

/* Report the progress of a study. */
struct progress;
void text_show_study(struct progress *shown, const mha_study_progress *at);

/* Callbacks of a run: fields of mha_transformer_input. */
typedef struct text_visit {
    mha_status (*after_layer)(void *user, const mha_activations *activations, int64_t layer);
    void *user;
    const mha_tensor *gates;
} text_visit;

/* Run one text through model.net, which must not be a decoder of an encoder-decoder. */
mha_status text_model_run(const text_model *model, const mha_tokens *tokens,
                          const text_visit *visit);

#endif
