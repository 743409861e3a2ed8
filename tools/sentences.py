#!/usr/bin/env python3
"""Write sentences with gold links for scoring heads: CoNLL-U on stdout, plain lines with --text. A seed gives the same
sentences on every machine.

    tools/sentences.py > sentences.conllu
    multihead heads MODEL --conllu sentences.conllu

First come the sentences that every lesson on attention quotes, with links set by hand; then --count sentences from a
small grammar whose words are single tokens in BERT's vocabulary (uncased). Links follow Universal Dependencies (det,
amod, nsubj, obj, ...). Coref=N in the last column links "it" to its noun, which only the following
adjective determines: animals are tired, streets are wide. docs/heads-minilm.md has the results.
"""
import argparse
import os
import sys

# Each line: form, head (a word's number), relation, MISC.
QUOTED = [
    [("The", 2, "det"), ("animal", 5, "nsubj"), ("did", 5, "aux"), ("n't", 5, "advmod"),
     ("cross", 0, "root"), ("the", 7, "det"), ("street", 5, "obj"), ("because", 12, "mark"),
     ("it", 12, "nsubj", "Coref=2"), ("was", 12, "cop"), ("too", 12, "advmod"),
     ("tired", 5, "advcl", "SpaceAfter=No"), (".", 5, "punct")],
    [("The", 2, "det"), ("animal", 5, "nsubj"), ("did", 5, "aux"), ("n't", 5, "advmod"),
     ("cross", 0, "root"), ("the", 7, "det"), ("street", 5, "obj"), ("because", 12, "mark"),
     ("it", 12, "nsubj", "Coref=7"), ("was", 12, "cop"), ("too", 12, "advmod"),
     ("wide", 5, "advcl", "SpaceAfter=No"), (".", 5, "punct")],
    [("The", 2, "det"), ("bank", 7, "nsubj:pass"), ("by", 5, "case"), ("the", 5, "det"),
     ("river", 2, "nmod"), ("was", 7, "aux:pass"), ("flooded", 0, "root", "SpaceAfter=No"),
     (".", 7, "punct")],
    [("The", 2, "det"), ("cat", 3, "nsubj"), ("sat", 0, "root"), ("on", 6, "case"),
     ("the", 6, "det"), ("mat", 3, "obl")],
    [("The", 3, "det"), ("river", 3, "compound"), ("banks", 4, "nsubj"),
     ("overflowed", 0, "root", "SpaceAfter=No"), (".", 4, "punct")],
    [("The", 2, "det"), ("pilot", 3, "nsubj"), ("flew", 0, "root"), ("the", 5, "det"),
     ("plane", 3, "obj"), ("to", 7, "case"), ("Paris", 3, "obl", "SpaceAfter=No"),
     (".", 3, "punct")],
]

ANIMATE = """animal dog cat horse child teacher farmer driver pilot nurse doctor student rabbit fox wolf
bear bird king queen sailor guard baker soldier girl boy""".split()
PLACES = """street river road bridge field garden yard park square lake hall room valley forest beach
market station tunnel path hill""".split()
THINGS = "book letter lamp box chair table ball stone boat ticket hat coat apple knife".split()
TIRED = "tired hungry scared sick lazy weak angry".split()
WIDE = "wide narrow crowded steep dark dangerous long".split()
ADJECTIVES = "old big red small new young tall little white strange quiet famous".split()
ADVERBS = "quickly slowly often never always finally suddenly".split()
DEGREES = "too very quite so".split()
CROSS = ["cross", "enter", "leave", "reach", "like"]
CROSSED = ["crossed", "entered", "left", "reached", "liked"]
TRANSITIVE = "saw found bought carried dropped painted wanted watched held lost kept".split()
SAID = "said thought knew believed".split()
STAYED = "slept waited smiled worked stayed sang".split()
WHERE = "near behind in by beside".split()


class Random:
    """splitmix64 (Steele et al. 2014)."""

    def __init__(self, seed):
        self.state = seed & (1 << 64) - 1

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (1 << 64) - 1
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (1 << 64) - 1
        return (z ^ (z >> 31)) % n

    def one_of(self, items):
        return items[self.below(len(items))]

    def chance(self, percent):
        return self.below(100) < percent


class Sentence:
    """Words in order; heads and coreference are word numbers from 1."""

    def __init__(self):
        self.words = []

    def put(self, form, relation="_", head=None):
        self.words.append([form, head, relation, []])
        return len(self.words)

    def link(self, word, head, relation):
        self.words[word - 1][1:3] = [head, relation]

    def refer(self, word, to):
        self.words[word - 1][3].append(f"Coref={to}")


def noun_phrase(r, s, noun, place=None):
    """the [[very] adjective] noun [near the [adjective] place]; returns the noun's number."""
    waiting = [(s.put("the"), "det")]
    if r.chance(45):
        if r.chance(25):
            degree = s.put(r.one_of(["very", "quite"]))
            adjective = s.put(r.one_of(ADJECTIVES))
            s.link(degree, adjective, "advmod")
        else:
            adjective = s.put(r.one_of(ADJECTIVES))
        waiting.append((adjective, "amod"))
    number = s.put(noun)
    for word, relation in waiting:
        s.link(word, number, relation)
    if place:
        case = s.put(r.one_of(WHERE))
        other = noun_phrase(r, s, place)
        s.link(case, other, "case")
        s.link(other, number, "nmod")
    return number


def subject(r, s, noun):
    return noun_phrase(r, s, noun, r.one_of(PLACES) if r.chance(30) else None)


def because(r, s, verb, referents, kind):
    """because it was too tired: it is referents[kind]."""
    mark = s.put("because")
    it = s.put("it")
    cop = s.put("was")
    degree = s.put(r.one_of(DEGREES))
    word = s.put(r.one_of(WIDE if kind else TIRED))
    for number, head, relation in ((mark, word, "mark"), (it, word, "nsubj"), (cop, word, "cop"),
                                   (degree, word, "advmod"), (word, verb, "advcl")):
        s.link(number, head, relation)
    s.refer(it, referents[kind])


def active_because(r, s):
    animate = subject(r, s, r.one_of(ANIMATE))
    did, no = s.put("did"), s.put("not")
    verb = s.put(r.one_of(CROSS))
    place = noun_phrase(r, s, r.one_of(PLACES))
    for number, relation in ((animate, "nsubj"), (did, "aux"), (no, "advmod"), (place, "obj")):
        s.link(number, verb, relation)
    because(r, s, verb, (animate, place), r.below(2))
    return verb


def passive_because(r, s):
    place = noun_phrase(r, s, r.one_of(PLACES))
    was, no = s.put("was"), s.put("not")
    verb = s.put(r.one_of(CROSSED))
    by = s.put("by")
    animate = noun_phrase(r, s, r.one_of(ANIMATE))
    for number, head, relation in ((place, verb, "nsubj:pass"), (was, verb, "aux:pass"),
                                   (no, verb, "advmod"), (by, animate, "case"),
                                   (animate, verb, "obl")):
        s.link(number, head, relation)
    because(r, s, verb, (animate, place), r.below(2))
    return verb


def transitive(r, s, root=True):
    """The [adverb] dog saw the book [in the garden] [and left the room]."""
    who = subject(r, s, r.one_of(ANIMATE))
    adverb = s.put(r.one_of(ADVERBS)) if r.chance(35) else None
    verb = s.put(r.one_of(TRANSITIVE))
    thing = noun_phrase(r, s, r.one_of(THINGS))
    s.link(who, verb, "nsubj")
    s.link(thing, verb, "obj")
    if adverb:
        s.link(adverb, verb, "advmod")
    if r.chance(30):
        case = s.put("in")
        place = noun_phrase(r, s, r.one_of(PLACES))
        s.link(case, place, "case")
        s.link(place, verb, "obl")
    if root and r.chance(25):
        also = s.put("and")
        second = s.put(r.one_of(CROSSED))
        place = noun_phrase(r, s, r.one_of(PLACES))
        s.link(also, second, "cc")
        s.link(second, verb, "conj")
        s.link(place, second, "obj")
    return verb


def reported(r, s):
    """The nurse said that the dog lost the ball."""
    who = noun_phrase(r, s, r.one_of(ANIMATE))
    verb = s.put(r.one_of(SAID))
    mark = s.put("that")
    inner = transitive(r, s, root=False)
    s.link(who, verb, "nsubj")
    s.link(mark, inner, "mark")
    s.link(inner, verb, "ccomp")
    return verb


def intransitive(r, s):
    who = subject(r, s, r.one_of(ANIMATE))
    verb = s.put(r.one_of(STAYED))
    s.link(who, verb, "nsubj")
    case = s.put(r.one_of(WHERE))
    place = noun_phrase(r, s, r.one_of(PLACES))
    s.link(case, place, "case")
    s.link(place, verb, "obl")
    return verb


def copula(r, s):
    who = subject(r, s, r.one_of(ANIMATE))
    was = s.put("was")
    degree = s.put(r.one_of(DEGREES))
    word = s.put(r.one_of(TIRED))
    s.link(who, word, "nsubj")
    s.link(was, word, "cop")
    s.link(degree, word, "advmod")
    return word


def grammar_sentence(r):
    """A sentence of a random pattern, with a final full stop."""
    s = Sentence()
    pattern = r.one_of([active_because, active_because, passive_because, transitive, transitive,
                        transitive, reported, intransitive, copula])
    root = pattern(r, s)
    s.link(root, 0, "root")
    s.words[-1][3].append("SpaceAfter=No")
    s.put(".", "punct", root)
    s.words[0][0] = s.words[0][0].capitalize()
    return s.words


def quoted_sentence(words):
    return [[form, head, relation, list(misc)] for form, head, relation, *misc in words]


def spaced_text(words):
    """The text; "did" and "n't" are joined."""
    text = ""
    for i, (form, _, _, misc) in enumerate(words):
        joined = "SpaceAfter=No" in misc or (i + 1 < len(words) and words[i + 1][0] == "n't")
        text += form + ("" if joined or i + 1 == len(words) else " ")
    return text


def print_conllu(number, words, out):
    out.write(f"# sent_id = {number}\n# text = {spaced_text(words)}\n")
    for i, (form, head, relation, misc) in enumerate(words, 1):
        if i < len(words) and words[i][0] == "n't":
            out.write("\t".join([f"{i}-{i + 1}", form + "n't"] + ["_"] * 8) + "\n")
        misc = "|".join(misc) or "_"
        out.write("\t".join([str(i), form, "_", "_", "_", "_", str(head), relation, "_", misc]))
        out.write("\n")
    out.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=240, help="sentences of the grammar")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", action="store_true", help="plain lines instead of CoNLL-U")
    options = parser.parse_args()
    r = Random(options.seed)
    sentences = [quoted_sentence(words) for words in QUOTED]
    sentences += [grammar_sentence(r) for _ in range(options.count)]
    for number, words in enumerate(sentences, 1):
        if options.text:
            print(spaced_text(words))
        else:
            print_conllu(number, words, sys.stdout)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe; nothing may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
