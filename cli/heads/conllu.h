/* Sentences with gold links, from CoNLL-U (universaldependencies.org/format.html).
 *
 * Five of the ten columns of a word's line are read: ID, FORM, HEAD, DEPREL and MISC. Each word is
 * linked to its HEAD by a relation called DEPREL; root and punct are not links. In MISC,
 * SpaceAfter=No joins a word to the next one, and the project's own key Coref=7 links a word ("it")
 * to the word of the same sentence that it refers to (number 7) by a relation called coref. A
 * multiword token (ID 3-4) is one word with the links of its parts; empty nodes (ID 5.1) are
 * skipped.
 *
 * Files come from anywhere: every number is checked, and errors name the line.
 */
#ifndef CLI_CONLLU_H
#define CLI_CONLLU_H

#include "common/exits.h"

#include <multihead/heads.h>

#include <stdint.h>

typedef struct conllu_sentence {
    char *text; /* the words, joined; ends with a NUL */
    size_t bytes;
    int64_t words;
    int64_t *begin, *end;     /* [words] bytes of text */
    mha_heads_link *links;    /* the word `query` depends on the word `key`; numbers from 0 */
    int64_t link_count, line; /* line of the file where the sentence begins */
} conllu_sentence;

typedef struct conllu {
    conllu_sentence *sentences;
    int64_t count;
    char **names; /* [relations] in the order of their first appearance */
    int64_t relations;
} conllu;

/* spaced: separate all words, ignoring SpaceAfter. Errors are printed. */
cli_exit conllu_read(const char *path, bool spaced, conllu *out);

#endif
