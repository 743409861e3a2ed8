/* Files that the program writes, and stdout. A file appears whole or not at all: signals are
 * held while it is written (signals.h). */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <multihead/json.h>
#include <multihead/render.h>

/* stdout as a sink. A closed pipe gives MHA_ERR_CALLBACK, which prints nothing. */
extern const mha_sink files_stdout;

/* A function that writes an output. */
typedef mha_status files_draw_fn(const void *user, const mha_sink *sink);

/* For an mha_figure. */
files_draw_fn files_draw_svg, files_draw_png, files_draw_pdf;
files_draw_fn files_draw_npy; /* for an mha_tensor */

/* Begin the object that a subcommand writes with --json, one line per member. The first members are
 * the format, its version and the producer. */
void files_begin_json(mha_json *json, const char *format);

/* Call draw to write path, or stdout if path is "-". */
mha_status files_draw(const char *path, files_draw_fn *draw, const void *user);

/* The same for a file in a folder that the program owns; links are replaced. */
mha_status files_draw_in(const char *folder, const char *name, files_draw_fn *draw,
                         const void *user);

/* Call draw to append to path. A failure may leave the file incomplete, so this is only for folders
 * that are renamed when complete. */
mha_status files_append(const char *path, files_draw_fn *draw, const void *user);

/* Write tensor as .npy; "-" is stdout. */
mha_status files_write_npy(const char *path, const mha_tensor *tensor);

/* Whether the file can be written, as far as this can be tested without writing. */
mha_status files_check_place(const char *path);

/* The same for a folder, which need not exist. */
mha_status files_check_folder(const char *path);

/* The path of a file in the program's own folder; false if unknown or too long. */
bool files_beside_program(const char *name, char *path, size_t bytes);

/* Whether two paths name the same file, which need not exist: "a" and "./a". "-" is never the
 * same. */
bool files_same(const char *a, const char *b);

#endif
