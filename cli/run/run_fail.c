/* Errors of the library in terms of the command line: the library names fields of the descriptor,
 * users know options and files. */
#include "run/run.h"

#include <multihead/component.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Words of the library, the option that says the same, where its file stands in run_options (0: it
 * has none), and the shape that is wanted of it. */
static const struct {
    const char *word, *option, *shape;
    size_t text;
} words[] = {
#define FILE_WORD(word_, option_, field_, shape_)                                                \
    {                                                                                            \
        .word = word_, .option = option_, .shape = shape_, .text = offsetof(run_options, field_) \
    }
#define WORD(word_, option_)             \
    {                                    \
        .word = word_, .option = option_ \
    }
    FILE_WORD("keep_mask", "--keep-mask", keep_mask, "[B,H,T,S]"),
    FILE_WORD("bias", "--bias", bias, "[B,H,T,S]"),
    FILE_WORD("global_keys", "--global-keys", global_keys, "[B,S]"),
    FILE_WORD("global_queries", "--global-queries", global_queries, "[B,T]"),
    FILE_WORD("query_documents", "--query-documents", query_documents, "[B,T]"),
    FILE_WORD("key_documents", "--key-documents", key_documents, "[B,S]"),
    FILE_WORD("query_documents", "--documents", documents, "[B,T]"),
    FILE_WORD("key_documents", "--documents", documents, "[B,S]"),
    FILE_WORD("keep_blocks", "--keep-blocks", keep_blocks, "[B,H,rows,columns] of blocks"),
    FILE_WORD("alibi_slopes", "--alibi-slopes", alibi_slopes, "[H] or [B,H]"),
    FILE_WORD("t5_table", "--t5-table", t5_table, "[buckets,H]"),
    FILE_WORD("shaw_keys", "--shaw-keys", shaw_keys, "[2 k + 1, D]"),
    FILE_WORD("shaw_values", "--shaw-values", shaw_values, "[2 k + 1, Dv]"),
    FILE_WORD("sink_logits", "--sink-logits", sink_logits, "[H]"),
    FILE_WORD("gates", "--gates", gates, "[H] or [B,H]"),
    FILE_WORD("key_lengths", "--lengths", lengths, NULL),
    FILE_WORD("key_begins", "--begins", begins, NULL),
    FILE_WORD("q_offsets", "--offsets", offsets, NULL),
    FILE_WORD("query_starts", "--query-starts", query_starts, NULL),
    FILE_WORD("key_starts", "--key-starts", key_starts, NULL),
    WORD("mha_attention_desc: ", ""),
    WORD("mha_attention_outputs: ", ""),
    WORD("mha_linear_attention_desc: ", ""),
    WORD("mha_rope_desc: ", "--rope: "),
    WORD("window: ", "--window: "),
    WORD("clear MHA_ATTENTION_STRICT", "leave --strict out"),
    WORD("need the flag MHA_ATTENTION_WINDOW", "need --window"),
    WORD("set the flag MHA_ATTENTION_CAUSAL", "add --causal"),
    WORD("set the flag MHA_LINEAR_ATTENTION_CAUSAL", "add --causal"),
    WORD("left_keys, right_keys, sink_keys", "--sink-keys"),
    WORD("a q_offset", "--offset"),
    WORD("q_offset", "--offset"),
    WORD("the outputs diagonal and offset_mass", "--diagonal and --offset-mass"),
    WORD("left_keys", "keys before"),
    WORD("right_keys", "keys after"),
    WORD("sink_keys", "--sink-keys"),
    WORD("block_queries", "queries"),
    WORD("block_keys", "keys"),
    WORD("t5_max_distance", "--t5-max-distance"),
    WORD("softcap", "--softcap"),
    WORD("dropout", "--dropout"),
    WORD("epsilon", "--qk-epsilon"),
    WORD("rotary_dim", "--rope-dim"),
    WORD("base", "--rope-base"),
    WORD("factor", "--rope-scale"),
#undef FILE_WORD
#undef WORD
};

enum { WORD_COUNT = sizeof words / sizeof *words };

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static const char *file_of(const run_options *options, int word)
{
    if (words[word].text == 0) return NULL;
    return *(const char *const *)(const void *)((const char *)options + words[word].text);
}

/* The entry that stands at text as a whole word, or -1. Of two for one word that whose file is
 * given. */
static int find_word(const run_options *options, const char *text)
{
    int found = -1;
    for (int i = 0; i < WORD_COUNT; i++) {
        size_t length = strlen(words[i].word);
        bool open = is_letter(words[i].word[length - 1]);
        if (strncmp(text, words[i].word, length) != 0 || (open && is_letter(text[length])))
            continue;
        if (found < 0 || file_of(options, i)) found = i;
    }
    return found;
}

/* "k: dim 3 ..." begins with an input: its file, and what it was taken for. Returns the bytes of
 * detail that are said by it. */
static size_t name_input(const run_options *options, const run_problem *problem, const char *detail,
                         char *out, size_t size)
{
    static const char letters[] = "qkv";
    const char *at = strchr(letters, detail[0]);
    if (!*detail || !at || detail[1] != ':') return 0;
    const char *names[] = {problem->q_name, problem->k_name, problem->v_name};
    const mha_tensor *views[] = {&problem->q, &problem->k, &problem->v};
    char shape[128];
    snprintf(out, size, "%s (%s%s, taken as [B,H,T,D] = %s):", names[at - letters],
             options->x || options->example ? "as " : "--", (char[]){detail[0], '\0'},
             run_shape_text(views[at - letters], shape, sizeof shape));
    return 2;
}

/* A growing line; what does not fit is cut. */
typedef struct line {
    char text[1024];
    size_t used;
} line;

static void append(line *l, const char *text, size_t bytes)
{
    size_t room = sizeof l->text - 1 - l->used;
    if (bytes > room) bytes = room;
    memcpy(l->text + l->used, text, bytes);
    l->used += bytes;
    l->text[l->used] = '\0';
}

static void append_text(line *l, const char *text)
{
    append(l, text, strlen(text));
}

/* The option of a word; at the beginning of a message with its file or list, and "[1]" behind it,
 * which names an entry, set apart. Returns the bytes of detail that are said by it. */
static size_t say_word(const run_options *options, int word, const char *detail, bool first,
                       line *out)
{
    size_t at = strlen(words[word].word);
    const char *file = first ? file_of(options, word) : NULL;
    append_text(out, words[word].option);
    if (!file) return at;
    append_text(out, " ");
    append_text(out, file);
    size_t index = detail[at] == '[' ? strcspn(detail + at + 1, "]") : 0;
    if (index == 0 || detail[at + 1 + index] != ']') return at;
    append_text(out, ": entry ");
    append(out, detail + at + 1, index);
    return at + index + 2;
}

/* Behind a shape that does not fit: what it was to fit. */
static void say_shapes(const run_options *options, const run_problem *problem, const char *detail,
                       line *out)
{
    char shape[128];
    int word = find_word(options, detail);
    bool of_k = !strncmp(detail, "k:", 2), of_v = !strncmp(detail, "v:", 2);
    if (word >= 0 && words[word].shape) {
        append_text(out, "; it is ");
        append_text(out, words[word].shape);
    } else if (of_k || of_v) {
        append_text(out, of_k ? ", since q is " : ", since k is ");
        append_text(out, run_shape_text(of_k ? &problem->q : &problem->k, shape, sizeof shape));
    } else if (!strncmp(detail, "q has", 5)) {
        append_text(out, "; --layout, --heads and --kv-heads tell where the heads are");
    }
}

cli_exit run_fail(const run_options *options, const run_problem *problem, mha_status status)
{
    const char *detail = mha_error_detail();
    line out = {0};
    size_t at = name_input(options, problem, detail, out.text, sizeof out.text);
    out.used = strlen(out.text);
    for (bool inside = false; detail[at]; inside = is_letter(detail[at - 1])) {
        int word = inside ? -1 : find_word(options, detail + at);
        if (word < 0)
            append(&out, &detail[at++], 1);
        else
            at += say_word(options, word, detail + at, at == 0, &out);
    }
    if (status == MHA_ERR_SHAPE) say_shapes(options, problem, detail, &out);
    if (status == MHA_ERR_SHAPE || status == MHA_ERR_NUMERIC)
        return cli_fail(CLI_BAD_INPUT, RUN, "%s", out.text);
    return cli_fail_status(RUN, mha_fail(status, "%s", out.text));
}
