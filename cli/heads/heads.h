/* multihead heads: measure every head of a model over texts. Options are in cmd_heads.c, texts and
 * gold links in heads_texts.c, the study in heads_measure.c, printing in heads_table.c and
 * heads_out.c. 'ablate' and 'circuits' share the texts, selection, page and arrays. */
#ifndef CLI_HEADS_H
#define CLI_HEADS_H

#include "common/args.h"
#include "common/screen.h"
#include "common/text_model.h"
#include "heads/conllu.h"

#include <multihead/head_corpus.h>
#include <multihead/head_distances.h>
#include <multihead/head_pass.h>
#include <multihead/heads.h>
#include <multihead/render_heads.h>

typedef struct heads_options {
    args_texts texts;             /* from the command line */
    args_texts attention, tokens; /* files of maps instead of a model, and of their tokens */
    args_texts images;            /* files and folders instead of texts */
    const char *model, *text_file, *conllu, *example;
    int whole, truncate, predict, words;
    int self; /* of an encoder-decoder: self-attention of the decoder */
    int64_t max_tokens, random;
    bool named, drawn; /* texts, and random, are given */
    bool alone;        /* a state only: show its results without measuring */
    args_texts layers, heads, roles;
    const char *sort;
    args_real min, clusters; /* clusters: the largest distance between members */
    int csv, json, details, quiet;
    const char *page;          /* FILE.html */
    const char *npy, *headvis; /* new folders: of arrays; of files for HeadVis */
    const char *pictures;      /* a new folder of pictures, ... */
    int png, pdf;              /* also write these formats */
    int corpus;                /* distributions, places, tokens */
    args_texts without;        /* heads whose output is 0 */
    int64_t cut;               /* tokens of each piece of a text; 0: texts are whole */
    const char *state;         /* FILE of --state; NULL: none */
    int64_t save_every;        /* seconds; -1: not given */
    screen_options screen;
    int spread; /* divide the model's layers, not the texts, among ranks */
    int64_t threads;
} heads_options;

/* Parse options into a struct that begins with *options, and MODEL and texts. Check the names of files and
 * folders. */
cli_exit heads_parse(const args_page *page, int count, char *const *arguments,
                     heads_options *options);

/* A text to measure on. */
typedef struct heads_source {
    const char *text;
    size_t bytes;
    const conllu_sentence *gold; /* NULL: no links */
    const char *file;            /* NULL: from the command line */
    bool image;                  /* the file is an image; no text */
    int64_t line, offset;        /* offset: bytes of the text before this piece */
    /* Of an encoder-decoder, whose source is text: the target, or NULL and the one that the model
     * writes */
    const char *target;
    size_t target_bytes;
    mha_tokens *made;
} heads_source;

typedef struct heads_sources {
    heads_source *items;
    int64_t count, room;
    int64_t made; /* targets that the model wrote */
    conllu gold;
} heads_sources;

/* All texts of the options. For a model of whole words, words of gold sentences are separated. */
cli_exit heads_sources_read(const heads_options *options, text_model *model,
                            heads_sources *sources);

/* What to give 'view' after the model: --image FILE, or a text. */
static inline const char *heads_argument(const heads_options *options)
{
    return options->images.count > 0 ? "--image FILE" : "\"text\"";
}

/* All images of --image. */
cli_exit heads_images_read(const heads_options *options, heads_sources *sources);

/* The results. */
typedef struct heads_found {
    const text_model *model;
    mha_study_found of;     /* over all ranks, including those of a state; passed to the functions
                             * of study.h */
    int64_t count;          /* heads of all layers */
    const mha_study *study; /* owns the results; NULL: the maps come from arrays */
    bool stopped;           /* stopped by a signal before the last text */
    bool images;            /* texts are images */
    bool cross;             /* the heads are those of cross-attention */
    int64_t made;           /* texts whose target the model wrote */
    float *gates;           /* [layers, heads] 0: ablated; NULL: none */
} heads_found;

cli_exit heads_sources_add(heads_sources *sources, heads_source source);

/* text_model_encode() of a text, with the limits of the options; of an encoder-decoder, the target; of an
 * image, its patches. *keys: the tokens of the source, otherwise *tokens; may be NULL. */
cli_exit heads_source_encode(const heads_options *options, text_model *model,
                             const heads_source *source, mha_tokens **tokens, mha_tokens **keys);

/* For an encoder-decoder (heads_pairs.c): check the options, split each text at its tab, and make the targets
 * that are missing. */
cli_exit heads_pairs_check(const heads_options *options, const text_model *model);
cli_exit heads_pairs_read(const heads_options *options, text_model *model, heads_sources *sources);

/* "cross-attention", "decoder self-attention"; NULL: the model has one kind of attention. */
const char *heads_attention(const heads_found *found);

/* Initialise the results with the model's heads. */
cli_exit heads_begin(const text_model *model, heads_found *found);

/* *unsaved: the error of saving the file of --state, or CLI_OK. */
cli_exit heads_measure(const heads_options *options, text_model *model,
                       const heads_sources *sources, heads_found *found, cli_exit *unsaved);

/* The same for the maps of --attention. *model is initialised as found->model, with the name of the
 * first file and no net. */
cli_exit heads_measure_arrays(const heads_options *options, text_model *model, heads_found *found);

typedef struct heads_role {
    mha_head_role is;
    char name[MHA_STUDY_NAME_BYTES]; /* mha_study_role_name() */
} heads_role;

/* One head of the table. */
typedef struct heads_row {
    int64_t layer, head;
    double key; /* the value that rows are sorted by, largest first; ties by layer and head */
    heads_role *roles; /* mha_study_roles() */
    int64_t role_count;
} heads_row;

/* The rows of --layer, --head, --role, --min and --sort. */
cli_exit heads_choose(const heads_options *options, const heads_found *found, heads_row **rows,
                      int64_t *count);

/* Sort by their keys. */
void heads_sort(heads_row *rows, int64_t count);

void heads_print(const heads_options *options, const heads_found *found, const heads_row *rows,
                 int64_t count);

/* A text cut into pieces of options->cut tokens (heads_corpus.c). */
cli_exit heads_corpus_cut(const heads_options *options, text_model *model,
                          const heads_source *whole, heads_sources *into);

/* A kind of token of a list, by name. */
typedef struct heads_token {
    const char *text;
    int64_t id; /* -1: special tokens together */
    mha_head_token found;
} heads_token;

enum { HEADS_MOST_TOKENS = 32 };
cli_exit heads_corpus_tokens(const heads_found *found, int64_t layer, int64_t head,
                             mha_head_token_list list, heads_token *tokens, int64_t most,
                             int64_t *count);

/* Write the members of a head's object, and of the top-level object. */
cli_exit heads_corpus_json(mha_json *json, const heads_found *found, const heads_row *row);
void heads_corpus_json_luck(mha_json *json, const mha_head_corpus *corpus);

/* Results of 'ablate' and 'circuits' in addition to the scores, for the page and for arrays. */
enum { HEADS_MOST_BESIDE = 8, HEADS_COMPOSITIONS = 3 };
typedef struct heads_beside {
    mha_heads_column columns[HEADS_MOST_BESIDE];
    int64_t column_count;
    int64_t x; /* initial column of the page's scatter plot, which selects the head of largest
                * magnitude */
    void (*values)(const void *of, const heads_row *row, mha_heads_value values[HEADS_MOST_BESIDE]);
    /* Add lists to a head's card, in lists[card->list_count], and its arrows. */
    cli_exit (*card)(const void *of, const heads_row *row, mha_heads_list lists[HEADS_MOST_BESIDE],
                     mha_heads_card *card);
    float *const *composition; /* q, k, v: [layers, heads, layers, heads]; NULL: not computed */
    double composition_chance;
    const void *of;
} heads_beside;

/* Write the page of -o (heads_report.c); beside may be NULL. */
cli_exit heads_write_page(const heads_options *options, text_model *model,
                          const heads_sources *sources, const heads_found *found,
                          const heads_row *rows, int64_t count, const heads_beside *beside);

/* Print the clusters of similar heads of each layer. */
cli_exit heads_print_clusters(const heads_options *options, const heads_found *found);
cli_exit heads_put_distances(mha_json *json, const heads_found *found, double cut);

/* Write the folder of --headvis (heads_headvis.c), with the heads of the rows. */
cli_exit heads_write_headvis(const heads_options *options, text_model *model,
                             const heads_sources *sources, const heads_found *found,
                             const heads_row *rows, int64_t count);

/* Write the folder of --pictures (heads_pictures.c), with the heads of the rows. */
cli_exit heads_write_pictures(const heads_options *options, text_model *model,
                              const heads_sources *sources, const heads_found *found,
                              const heads_row *rows, int64_t count);

/* The measures with examples: measures of rows, which a few tokens can illustrate. */
enum { HEADS_PLACED = 8 };
extern const mha_head_measure heads_placed[HEADS_PLACED];

/* The length of text truncated to at most `most` bytes, at a character boundary. */
size_t heads_whole_characters(const char *text, size_t bytes, size_t most);

/* "book.txt, text 3, token 17": the location of a place. */
void heads_report_where(const heads_source *source, const mha_head_place *place, char *where,
                        size_t size);

/* A token as written in its text, including the spaces before it. The result points into tokens. */
cli_exit heads_report_spelled(const heads_source *source, const mha_tokens *tokens, int64_t i,
                              const char **text);

/* Write the folder of --npy (heads_npy.c), with all heads; beside may be NULL. */
cli_exit heads_write_npy(const heads_options *options, const heads_found *found,
                         const heads_beside *beside);

void heads_print_csv(const mha_study_found *found, const heads_row *rows, int64_t count);
/* Write the lines of a JSON file that identify the program and the file's source. */
void heads_json_begin(mha_json *json, const char *format, const heads_found *found, int64_t heads);

/* Members of the open object that identify the head. */
void heads_json_head(mha_json *json, const heads_row *row);

cli_exit heads_write_json(const heads_options *options, const heads_found *found,
                          const heads_row *rows, int64_t count);

#endif
