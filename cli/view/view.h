/* The parts of `multihead view`: options -> maps (of a model or an array) -> figures -> outputs. */
#ifndef CLI_VIEW_H
#define CLI_VIEW_H

#include "common/maps.h"
#include "common/screen.h"
#include "common/text_model.h"

#include <multihead/show.h>

#include <stddef.h>

/* Additions to a report for all heads of a model, in order. */
typedef struct view_extra {
    const mha_curve *curves;
    const mha_frame *frames;
    const mha_column *columns;
    int64_t curve_count, frame_count, column_count;
} view_extra;

typedef struct view_ask view_ask; /* view_ask.h */

typedef struct view_options {
    args_texts texts; /* the two texts, without the model; pointers into the command line */
    const char *model;
    const char *example, *text_file;
    const char *image, *query;                   /* a file, and a token of it */
    const char *audio;                           /* a wav file */
    const char *attention, *tokens, *key_tokens; /* files: weights from anywhere */
    args_texts layers, heads, hide;
    const char *html, *svg, *png, *pdf, *json, *npy; /* outputs */
    const char *folder; /* shown as the files' model; NULL: the file names; not an option */
    const char *range;
    const char *contrast;  /* the text to compare with */
    const char *from, *to; /* words: rank heads that attend from one to the other */
    const char *desk;      /* a layer: show what each head writes */
    int cmap, values;      /* mha_cmap, mha_values */
    int scale;             /* 0: by the length of the text; otherwise 1 + mha_scale */
    int paper, terminal;   /* paper: screen_paper */
    screen_options screen;
    int renormalise, truncate, quiet;
    int neurons;                 /* a report includes queries and keys */
    int self;                    /* an encoder-decoder: maps of the decoder's self-attention */
    int experts;                 /* print the experts of each token instead of maps */
    int64_t threads, max_tokens; /* 0: not given */
    int sort;                    /* mha_answer_measure */
    int64_t first_panel;         /* of a report; -1: the strongest link's; not an option */
    bool first_cell;             /* a report opens on the cell below; not an option */
    int64_t first_row, first_col;
    const view_ask *ask;     /* scores of a report; not an option */
    const view_extra *extra; /* parts of a report; not an option; NULL: none */
    const mha_cards *cards;  /* cards of a report; not an option; NULL: not measured */
} view_options;

/* Run a model over the texts and store the maps of the heads of --layer and --head. Texts already
 * in maps are not read again. An open model is not reopened; the caller closes it. If cards is not
 * NULL and a report has room for the roles of heads, they are measured in the same run and stored
 * in *cards. */
cli_exit view_model_maps(const view_options *options, text_model *model, mha_maps *maps,
                         mha_cards **cards);

/* text_model_open(), preceded by a message on a terminal that a model is being loaded. */
cli_exit view_open_model(const view_options *options, text_model *model);

/* Set the fields of maps that describe their model. */
cli_exit view_name_source(const text_model *model, mha_maps *maps);

/* Read --example, --text-file or the command line into maps->text. */
cli_exit view_take_texts(const view_options *options, mha_maps *maps);

/* Draw the maps of --image. */
cli_exit view_image(const view_options *options);

/* Subtract the maps of --contrast, token by token. */
cli_exit view_contrast_maps(const view_options *options, text_model *model, mha_maps *maps);

/* Read the maps of --attention, with labels from --tokens. */
cli_exit view_array_maps(const view_options *options, mha_maps *maps);

/* Draw the maps of --audio. */
cli_exit view_audio(const view_options *options);

/* Write the files and print, as all kinds of maps do. */
cli_exit view_finish(const view_options *options, const mha_maps *maps);

/* The options of view_show(), also for an image. */
cli_exit view_show_options(const view_options *options, mha_show_options *how);

/* Make the figure and report of maps, in the arena. remark is added to the footnote; NULL: none. */
cli_exit view_show(const view_options *options, const mha_maps *maps, const char *remark,
                   mha_show **show);

/* Join the texts in one line, with at most `most` characters of each. Returns false if there are
 * none. */
bool view_join_texts(const mha_maps *maps, int most, char *out, size_t size);

/* Warn of names in --hide that are not tokens. */
void view_warn_of_idle_names(const view_options *options, const mha_maps *maps);

/* Check the options before any work; fill *lo and *hi for a fixed range. */
cli_exit view_check_range(const view_options *options, mha_range *range, double *lo, double *hi);

/* Whether any file output is requested, and whether all of them are compatible. */
bool view_has_files(const view_options *options);
cli_exit view_check_outputs(const view_options *options);

/* Check that the chosen heads fit the outputs before writing: an array needs equally many heads in
 * every layer. */
cli_exit view_check_picks(const view_options *options, const mha_maps *maps);

/* Write all requested files, with a line on stderr for each. */
cli_exit view_write_files(const view_options *options, const mha_maps *maps);

/* The same for an image, whose show has the figure and the page. */
cli_exit view_write_image(const view_options *options, const mha_maps *maps,
                          const mha_picture_show *show);

/* Select the heads of a figure that fit a terminal of this width: the strongest link of each
 * layer. */
cli_exit view_few(const mha_show *made, const mha_maps *all, int64_t width, mha_maps *few);

/* Print the experts of each token, for the layers of --layer and --head, also those without heads.
 * The check rejects --experts if none of them has experts. */
cli_exit view_check_experts(const view_options *options, const mha_maps *maps);
cli_exit view_print_experts(const view_options *options, const mha_maps *maps);

/* Draw the chosen heads on stdout, or by default the strongest ones. */
cli_exit view_print(const view_options *options, const mha_maps *maps);

#endif
