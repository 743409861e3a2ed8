/* The program's arena: allocation and release. Every piece is a separate allocation, so that the address sanitizer
 * detects leaks and uses after release. */
#include "common/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The letters of destroyed objects, in order. */
static char ended[32];

static void end(void *thing)
{
    strncat(ended, thing, 1);
}

static char a[] = "a", b[] = "b", c[] = "c", d[] = "d";

static int forget(void **state)
{
    (void)state;
    arena_close();
    ended[0] = '\0';
    return 0;
}

/* The output of a call on stderr. */
static char said[512];
static FILE *heard;
static int before;

static void listen(void)
{
    heard = tmpfile();
    before = dup(STDERR_FILENO);
    assert_true(heard && before >= 0 && dup2(fileno(heard), STDERR_FILENO) >= 0);
}

static void stop_listening(void)
{
    fflush(stderr);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(heard);
    said[fread(said, 1, sizeof said - 1, heard)] = '\0';
    fclose(heard);
}

static void gives_zeroed_memory_of_its_own(void **state)
{
    (void)state;
    enum { PIECES = 300, SIZE = 50 };
    double *pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        assert_int_equal(ARENA_ALLOC(SIZE, &pieces[i]), CLI_OK);
        for (int j = 0; j < SIZE; j++) assert_true(pieces[i][j] == 0);
        for (int j = 0; j < SIZE; j++) pieces[i][j] = i;
    }
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < SIZE; j++) assert_true(pieces[i][j] == i);
    char *none = NULL;
    assert_int_equal(ARENA_ALLOC(0, &none), CLI_OK);
    assert_non_null(none);
}

static void says_what_was_too_large(void **state)
{
    (void)state;
    double *x = (double *)said;
    listen();
    const cli_exit code = ARENA_ALLOC(INT64_C(1) << 60, &x); /* 2^63 bytes */
    stop_listening();
    assert_int_equal(code, CLI_NO_MEMORY);
    assert_null(x);
    assert_string_equal(said, "multihead: out of memory: 1152921504606846976 elements of 8 bytes, "
                              "8 EiB in total; make the input smaller, or free memory\n");
    assert_null(arena_try((INT64_C(1) << 61) + 1, 8)); /* the product 8 if it could wrap at 2^64 */
    assert_null(arena_try(-1, 1));
    assert_int_equal(arena_mark(), 0);
}

static void grows_and_keeps_what_was_there(void **state)
{
    (void)state;
    int *x = NULL, *first;
    assert_int_equal(ARENA_ALLOC(1, &first), CLI_OK);
    *first = -7;
    for (int64_t n = 1; n <= 1 << 16; n *= 2) {
        assert_int_equal(arena_grow(n, sizeof *x, &x), CLI_OK);
        for (int64_t i = n / 2; i < n; i++) x[i] = (int)i;
    }
    for (int i = 0; i < 1 << 16; i++) assert_int_equal(x[i], i);
    assert_int_equal(*first, -7);
    assert_int_equal(arena_mark(), 2); /* still one object */
    int *same = x;
    listen();
    assert_int_equal(arena_grow(INT64_MAX, sizeof *x, &x), CLI_NO_MEMORY);
    stop_listening();
    assert_ptr_equal(x, same);
    assert_int_equal(x[(1 << 16) - 1], (1 << 16) - 1);
}

static void copies_texts(void **state)
{
    (void)state;
    char *copy, *empty;
    assert_int_equal(arena_text("word and more", 4, &copy), CLI_OK);
    assert_string_equal(copy, "word");
    assert_int_equal(arena_text(NULL, 0, &empty), CLI_OK);
    assert_string_equal(empty, "");
}

static void ends_things_last_come_first(void **state)
{
    (void)state;
    assert_int_equal(arena_keep(a, end), CLI_OK);
    assert_int_equal(arena_keep(NULL, end), CLI_OK);
    assert_int_equal(arena_keep(b, end), CLI_OK);
    assert_int_equal(arena_keep(c, end), CLI_OK);
    arena_close();
    assert_string_equal(ended, "cba");
    arena_close();
    assert_string_equal(ended, "cba");
}

static void a_mark_keeps_what_came_before(void **state)
{
    (void)state;
    char *text;
    arena_keep(a, end);
    const size_t mark = arena_mark();
    for (int i = 0; i < 3; i++) {
        arena_keep(b, end);
        assert_int_equal(arena_text("x", 1, &text), CLI_OK);
        arena_keep(c, end);
        arena_release(mark);
        assert_int_equal(arena_mark(), mark);
    }
    assert_string_equal(ended, "cbcbcb");
    arena_close();
    assert_string_equal(ended, "cbcbcba");
}

static void drops_one_from_the_middle(void **state)
{
    (void)state;
    char *text;
    arena_keep(a, end);
    arena_keep(b, end);
    assert_int_equal(arena_text("x", 1, &text), CLI_OK);
    arena_keep(c, end);
    arena_drop(b);
    assert_string_equal(ended, "b");
    arena_drop(b); /* not an object any more */
    arena_drop(d);
    arena_drop(NULL);
    arena_drop(text);
    arena_drop(c);
    assert_string_equal(ended, "bc");
    assert_int_equal(arena_mark(), 1);
    arena_close();
    assert_string_equal(ended, "bca");
}

/* A destructor may destroy another object first, like that of a model that owns a file. */
static void end_and_drop(void *thing)
{
    end(thing);
    arena_drop(a);
}

static void a_destructor_may_drop_another(void **state)
{
    (void)state;
    arena_keep(a, end);
    arena_keep(b, end);
    arena_keep(c, end_and_drop);
    arena_close();
    assert_string_equal(ended, "cab");
}

static cli_exit fails_at(int step, int *reached)
{
    for (*reached = 0; *reached < 3; ++*reached)
        if (step == *reached)
            CLI_TRY(CLI_BAD_INPUT);
        else
            CLI_TRY(CLI_OK);
    return CLI_OK;
}

static void try_leaves_with_the_code(void **state)
{
    (void)state;
    int reached;
    assert_int_equal(fails_at(1, &reached), CLI_BAD_INPUT);
    assert_int_equal(reached, 1);
    assert_int_equal(fails_at(-1, &reached), CLI_OK);
    assert_int_equal(reached, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gives_zeroed_memory_of_its_own, forget, forget),
        cmocka_unit_test_setup_teardown(says_what_was_too_large, forget, forget),
        cmocka_unit_test_setup_teardown(grows_and_keeps_what_was_there, forget, forget),
        cmocka_unit_test_setup_teardown(copies_texts, forget, forget),
        cmocka_unit_test_setup_teardown(ends_things_last_come_first, forget, forget),
        cmocka_unit_test_setup_teardown(a_mark_keeps_what_came_before, forget, forget),
        cmocka_unit_test_setup_teardown(drops_one_from_the_middle, forget, forget),
        cmocka_unit_test_setup_teardown(a_destructor_may_drop_another, forget, forget),
        cmocka_unit_test_setup_teardown(try_leaves_with_the_code, forget, forget),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
