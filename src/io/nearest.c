/* Find the name most similar to a mistyped word. */
#include <multihead/io.h>

#include <string.h>

enum { LONGEST_NAME = 31 };

static int least_of(int a, int b)
{
    return a < b ? a : b;
}

/* The number of edits that turn a into b: insert, remove, replace, or swap two neighbours. */
static int edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST_NAME || m > LONGEST_NAME) return LONGEST_NAME;
    int cost[LONGEST_NAME + 1][LONGEST_NAME + 1];
    for (size_t i = 0; i <= n; i++) cost[i][0] = (int)i;
    for (size_t j = 0; j <= m; j++) cost[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            int replace = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            cost[i][j] = least_of(replace, 1 + least_of(cost[i - 1][j], cost[i][j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost[i][j] = least_of(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    return cost[n][m];
}

/* Prefixes count as similar: "--trunc" and "--truncate", "--output" and "--out". A word of a name
 * is also similar to it: "--mask" and "--keep-mask". */
static bool is_part(const char *word, size_t length, const char *name)
{
    size_t whole = strlen(name);
    if (length < 3) return false;
    if (!strncmp(word, name, length) || (whole >= 3 && !strncmp(word, name, whole))) return true;
    const char *behind = whole > length ? name + whole - length : name;
    return behind > name && behind[-1] == '-' && !strcmp(behind, word);
}

const char *mha_nearest_name(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t length = strlen(word);
    int bound = length > 4 ? 3 : 2; /* distances from here on are too large */
    for (size_t i = 0; i < count; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance >= bound && is_part(word, length, names[i])) distance = bound - 1;
        if (distance < bound) {
            best = names[i];
            bound = distance;
        }
    }
    return best;
}
