/* Report errors of the library in terms of the command line. The library names fields of the
 * descriptor; users know options and files. */
#include "run/run.h"

#include <multihead/component.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* The library's words besides its inputs, and the option or words that replace them. Entries with a text
 * in run_options have a shape, which messages omit. */
#define TEXT(word_, option_, field_)                                                         \
    {                                                                                        \
        .word = word_, .option = option_, .shape = "", .text = offsetof(run_options, field_) \
    }
static const run_input words[] = {
    TEXT("key_lengths", "--lengths", lengths),
    TEXT("key_begins", "--begins", begins),
    TEXT("q_offsets", "--offsets", offsets),
    TEXT("query_starts", "--query-starts", query_starts),
    TEXT("key_starts", "--key-starts", key_starts),
    {.word = "mha_attention_desc: ", .option = ""},
    {.word = "mha_attention_outputs: ", .option = ""},
    {.word = "mha_linear_attention_desc: ", .option = ""},
    {.word = "mha_rope_desc: ", .option = "--rope: "},
    {.word = "window: ", .option = "--window: "},
    {.word = "clear MHA_ATTENTION_STRICT", .option = "omit --strict"},
    {.word = "require the flag MHA_ATTENTION_WINDOW", .option = "require --window"},
    {.word = "set the flag MHA_ATTENTION_CAUSAL", .option = "add --causal"},
    {.word = "set the flag MHA_LINEAR_ATTENTION_CAUSAL", .option = "add --causal"},
    {.word = "left_keys, right_keys, sink_keys", .option = "--sink-keys"},
    {.word = "q_offset", .option = "--offset"},
    {.word = "the outputs diagonal and offset_mass", .option = "--diagonal and --offset-mass"},
    {.word = "left_keys", .option = "keys before"},
    {.word = "right_keys", .option = "keys after"},
    {.word = "sink_keys", .option = "--sink-keys"},
    {.word = "block_queries", .option = "queries"},
    {.word = "block_keys", .option = "keys"},
    {.word = "t5_max_distance", .option = "--t5-max-distance"},
    {.word = "softcap", .option = "--softcap"},
    {.word = "dropout", .option = "--dropout"},
    {.word = "epsilon", .option = "--qk-epsilon"},
    {.word = "rotary_dim", .option = "--rope-dim"},
    {.word = "base", .option = "--rope-base"},
    {.word = "factor", .option = "--rope-scale"},
};

enum { WORD_COUNT = sizeof words / sizeof *words };

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The entry for the whole word at text, or NULL. */
static const run_input *find_word(const char *text)
{
    for (int i = 0; i < RUN_INPUT_COUNT + WORD_COUNT; i++) {
        const run_input *one = i < RUN_INPUT_COUNT ? &run_inputs[i] : &words[i - RUN_INPUT_COUNT];
        const size_t length = strlen(one->word);
        if (strncmp(text, one->word, length) != 0) continue;
        if (!is_letter(one->word[length - 1]) || !is_letter(text[length])) return one;
    }
    return NULL;
}

/* A growing line; the excess is truncated. */
typedef struct line {
    char text[1024];
    size_t used;
} line;

static void append(line *l, const char *format, ...) MHA_PRINTF(2, 3);

static void append(line *l, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(l->text + l->used, sizeof l->text - l->used, format, arguments);
    va_end(arguments);
    l->used += strlen(l->text + l->used);
}

/* Replace the input at the beginning of "k: dim 3 ..." by its file and its interpretation. Returns the
 * number of replaced bytes of detail. */
static size_t say_array(const run_problem *p, const char *detail, line *out)
{
    static const char letters[] = "qkv";
    const char *at = strchr(letters, detail[0]);
    if (!*detail || !at || detail[1] != ':') return 0;
    const mha_tensor *views[] = {&p->q, &p->k, &p->v};
    append(out, "%s (%s%c, taken as [B,H,T,D] = %s):", p->names[at - letters],
           p->options->x || p->options->example ? "as " : "--", *at,
           run_shape_of(views[at - letters]).text);
    return 2;
}

/* Replace a word by its option. At the beginning of a message, add its file or list. An index "[1]"
 * becomes an entry number. Returns the number of replaced bytes of detail. */
static size_t say_word(const run_options *o, const run_input *word, const char *detail, bool first,
                       line *out)
{
    const size_t at = strlen(word->word), index = strcspn(detail + at, "]");
    const char *option = word->option, *file = NULL;
    if (word->shape) file = run_input_text(o, word, &option);
    append(out, "%s", option);
    if (!first || !file) return at;
    append(out, " %s", file);
    if (detail[at] != '[' || detail[at + index] != ']' || index == 1) return at;
    append(out, ": entry %.*s", (int)index - 1, detail + at + 1);
    return at + index + 1;
}

/* Append the expected shape to a shape error. */
static void say_shapes(const run_problem *p, const char *detail, line *out)
{
    const run_input *word = find_word(detail);
    if (word && word->shape && *word->shape)
        append(out, "; it is %s", word->shape);
    else if (!strncmp(detail, "k:", 2))
        append(out, ", since q is %s", run_shape_of(&p->q).text);
    else if (!strncmp(detail, "v:", 2))
        append(out, ", since k is %s", run_shape_of(&p->k).text);
    else if (!strncmp(detail, "q has", 5))
        append(out, "; --layout, --heads and --kv-heads define the axis of the heads");
}

cli_exit run_check(const run_problem *p, mha_status status)
{
    if (status == MHA_OK) return CLI_OK;
    const char *detail = mha_error_detail();
    line out = {0};
    size_t at = say_array(p, detail, &out);
    for (bool inside = false; detail[at]; inside = is_letter(detail[at - 1])) {
        const run_input *word = inside ? NULL : find_word(detail + at);
        if (word)
            at += say_word(p->options, word, detail + at, at == 0, &out);
        else
            append(&out, "%c", detail[at++]);
    }
    if (status == MHA_ERR_SHAPE) say_shapes(p, detail, &out);
    if (status == MHA_ERR_SHAPE || status == MHA_ERR_NUMERIC) return RUN_BAD_INPUT("%s", out.text);
    return cli_fail_status(mha_fail(status, "%s", out.text));
}
