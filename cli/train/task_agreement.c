/* Agreement: a verb takes the number of its subject, regardless of nouns of the other number
 * between them.
 *
 *   the old keys near the cabinet behind her windows usually open the book .
 *
 * Determiners have no number, so that only nouns and verbs show it. An opening, adjectives, adverbs
 * and up to two phrases vary the position of the subject. In half of the sentences with a phrase
 * the noun nearest to the verb has the wrong number. A tenth of the pairs of a subject and the next
 * noun (the object, if there is no phrase) never occurs in training. The kind of a probe is the
 * number of intervening nouns with the other number. */
#include "train/train.h"

#include <stdio.h>

enum { NOUNS = 24, VERBS = 12, LONGEST = 28, PHRASES = 2 };

/* The start of each class of words in the list below. Plural nouns and verbs follow their singular
 * at distance NOUNS and VERBS. */
enum {
    BEGIN = 0,
    END = 1,
    NOUN = 2,
    VERB = NOUN + 2 * NOUNS,
    DETERMINER = VERB + 2 * VERBS,
    ADJECTIVE = DETERMINER + 4,
    PREPOSITION = ADJECTIVE + 6,
    OPENING = PREPOSITION + 4,
    ADVERB = OPENING + 4,
    COMMA = ADVERB + 4,
    STOP,
    WORDS
};

/* clang-format off */
static const char *const words[WORDS] = {
    "<s>", "</s>",
    "key", "cabinet", "dog", "window", "teacher", "book", "road", "child", "letter", "garden",
    "ship", "doctor", "table", "king", "lamp", "river", "student", "wall", "bird", "farmer",
    "picture", "guard", "machine", "tree",
    "keys", "cabinets", "dogs", "windows", "teachers", "books", "roads", "children", "letters",
    "gardens", "ships", "doctors", "tables", "kings", "lamps", "rivers", "students", "walls",
    "birds", "farmers", "pictures", "guards", "machines", "trees",
    "opens", "finds", "needs", "sees", "likes", "moves", "keeps", "helps", "shows", "leaves",
    "takes", "makes",
    "open", "find", "need", "see", "like", "move", "keep", "help", "show", "leave", "take", "make",
    "the", "my", "her", "our",
    "old", "big", "red", "small", "new", "quiet",
    "near", "behind", "beside", "with",
    "today", "now", "sometimes", "here",
    "usually", "often", "still", "really",
    ",", ".",
};
/* clang-format on */

/* determiner [adjective] noun */
static void put_noun(random_source *r, train_sentence *s, int noun, bool plural)
{
    train_put(s, train_one_of(r, DETERMINER, 4));
    if (random_chance(r, 0.3)) train_put(s, train_one_of(r, ADJECTIVE, 6));
    train_put(s, NOUN + noun + (plural ? NOUNS : 0));
}

static bool held_out(int subject, int other)
{
    random_source r = random_make((uint64_t)subject, 2000 + (uint64_t)other);
    return random_below(&r, 10) == 0;
}

static void make_sentence(random_source *r, train_split split, train_sentence *s)
{
    const int phrases = random_chance(r, 0.25) ? 0 : random_chance(r, 0.45) ? 1 : 2;
    int subject, first;
    bool plural[1 + PHRASES];
    *s = (train_sentence){.probe = {.rights = 1, .wrong = -1}, .answer = -1};
    do {
        subject = (int)random_below(r, NOUNS);
        first = (int)random_below(r, NOUNS);
    } while (held_out(subject, first) != (split != TRAIN_SPLIT_TRAIN));
    train_put(s, BEGIN);
    if (random_chance(r, 0.4)) {
        train_put(s, train_one_of(r, OPENING, 4));
        if (random_chance(r, 0.5)) train_put(s, COMMA);
    }
    for (int i = 0; i <= phrases; i++) {
        if (i > 0) train_put(s, train_one_of(r, PREPOSITION, 4));
        plural[i] = random_chance(r, 0.5);
        put_noun(r, s, i == 0 ? subject : i == 1 ? first : (int)random_below(r, NOUNS), plural[i]);
        s->noun[i] = s->length - 1;
        if (plural[i] == plural[0]) continue;
        s->probe.kind++;
        s->probe.wrong = s->noun[i]; /* the nearest noun of the other number */
    }
    s->probe.right[0] = s->noun[0];
    if (random_chance(r, 0.4)) train_put(s, train_one_of(r, ADVERB, 4));
    s->probe.row = s->length - 1;
    train_put(s, VERB + (int)random_below(r, VERBS) + (plural[0] ? VERBS : 0));
    put_noun(r, s, phrases == 0 ? first : (int)random_below(r, NOUNS), random_chance(r, 0.5));
    train_put(s, STOP);
    train_put(s, END);
}

static void draw(const train_ask *ask, train_batch *batch)
{
    train_draw_sentences(ask, make_sentence, batch);
}

/* Any verb of the right number counts as correct. */
static int class_of(int32_t word)
{
    if (word < VERB || word >= VERB + 2 * VERBS) return -1 - word;
    return word >= VERB + VERBS;
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    const double best = train_best_right(recipe, s);
    if (train_worst_accuracy(s) >= 0.99 && best >= 0.8) return TRAIN_DONE;
    return step >= 400 && best < 0.3 ? TRAIN_RESTART : TRAIN_GO_ON;
}

/* Print the accuracy of guesses by position only. */
static void baselines(random_source *r)
{
    enum { SENTENCES = 20000 };
    int64_t nearest = 0, subject_nearest = 0, offset[LONGEST] = {0}, slot[LONGEST] = {0};
    int64_t best_offset = 0, best_slot = 0;
    for (int i = 0; i < SENTENCES; i++) {
        train_sentence s;
        make_sentence(r, TRAIN_SPLIT_REPORT, &s);
        const int64_t subject = s.probe.right[0];
        int64_t noun = s.probe.row;
        while (s.words[noun] < NOUN || s.words[noun] >= VERB) noun--;
        nearest += noun != s.probe.wrong;
        subject_nearest += noun == subject;
        offset[s.probe.row - subject]++;
        slot[subject]++;
    }
    for (int i = 0; i < LONGEST; i++) {
        if (offset[i] > best_offset) best_offset = offset[i];
        if (slot[i] > best_slot) best_slot = slot[i];
    }
    cli_print(
        "Without attention: the nearest noun has the verb's number in %.1f %%\n"
        "The subject is the nearest noun in %.1f %%, at the best fixed offset from the row before\n"
        "the verb in %.1f %%, at the best fixed position in %.1f %%\n"
        "",
        100.0 * (double)nearest / SENTENCES, 100.0 * (double)subject_nearest / SENTENCES,
        100.0 * (double)best_offset / SENTENCES, 100.0 * (double)best_slot / SENTENCES);
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL, TRAIN_LLAMA(2)},
    .init = {.head_grade = 0.3},
    TRAIN_USUAL_STEPS,
    .steps = 800,
    .every = 25,
    .tries = 6,
    .probes_to_stop = 600,
    .probes_to_report = 2000,
};

const train_task train_agreement = {
    .name = "agreement",
    .summary = "the verb takes its subject's number, regardless of nouns between them",
    .goal = "99 % of the verbs with 0, 1 and 2 intervening nouns of the other number, one head "
            "with 80 % of its weight on the subject for each",
    .kinds = {"none", "one", "two"},
    .words = words,
    .word_count = WORDS,
    .longest = LONGEST,
    .recipe = &recipe,
    .probes = 1,
    .draw = draw,
    .class_of = class_of,
    .judge = judge,
    .baselines = baselines,
    .begin = BEGIN,
    .end = END,
    .examples = {"the keys near the cabinet behind the old wall often open the window",
                 "the key near the cabinets behind the old walls often opens the window"},
    .looks = {"often", "often"},
};
