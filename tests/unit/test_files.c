/* Atomic files: targets of paths, folders of the library, and leftovers of killed writers. */
#define _XOPEN_SOURCE 700 /* symlink, mkdtemp, mkfifo */
#include <multihead/sink.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/suite.h"
#include "support/temp_files.h"

static mha_status finish(mha_file *file, mha_status status, const char *text)
{
    const mha_sink *sink = status ? NULL : mha_file_sink(file);
    if (sink && *text) status = sink->write(sink->user, text, strlen(text));
    return mha_file_finish(file, status);
}

static mha_status put(const char *path, const char *text)
{
    mha_file *file = NULL;
    mha_status status = mha_file_create(path, &file);
    return finish(file, status, text);
}

static mha_status put_in(const char *folder, const char *name, const char *text)
{
    mha_file *file = NULL;
    mha_status status = mha_file_create_in(folder, name, &file);
    return finish(file, status, text);
}

static void check(const char *path, const char *text)
{
    char *found = temp_read(path, NULL);
    assert_string_equal(found, text);
    free(found);
}

/* The part files of a folder. */
static int parts_in(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strstr(entry->d_name, ".part") != NULL;
    closedir(dir);
    return count;
}

/* ---- targets of paths ------------------------------------------------------------------------ */

/* A file system mounted below /dev is treated as an ordinary one. */
static void shared_memory_is_no_device(void)
{
    char folder[] = "/dev/shm/multihead-test-XXXXXX", path[64];
    if (!mkdtemp(folder)) skip();
    snprintf(path, sizeof path, "%s/file", folder);
    expect_ok(put(path, "a long text"));
    assert_int_equal(chmod(path, 0640), 0);
    mha_file *file = NULL;
    expect_ok(mha_file_create(path, &file));
    assert_int_equal(parts_in(folder), 1);
    expect_ok(finish(file, MHA_OK, "short"));
    check(path, "short");
    struct stat info;
    assert_true(stat(path, &info) == 0 && (info.st_mode & 0777) == 0640);
    expect_ok(mha_file_create(path, &file));
    assert_int_equal(mha_file_finish(file, MHA_ERR_CALLBACK), MHA_ERR_CALLBACK);
    check(path, "short");
    assert_int_equal(parts_in(folder), 0);
    unlink(path);
    rmdir(folder);
}

static void say(int descriptor, const char *text)
{
    assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
}

/* Like `(echo head; program -o /dev/stdout; echo tail) > file`, for each name of stdout. */
static void an_open_file_goes_on(void)
{
    const char *ways[] = {"/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"};
    if (access("/dev/fd/0", F_OK) != 0 || access("/proc/self/fd", F_OK) != 0) skip();
    for (int i = 0; i < 5; i++) {
        char way[64];
        const char *path = temp_write("open", "old and long, long, long, long", 30);
        int opened = open(path, O_WRONLY | O_TRUNC), before = temp_count();
        assert_true(opened >= 0);
        snprintf(way, sizeof way, "%s/%d", ways[i < 3 ? i : 0], opened);
        if (i >= 3) { /* a link to it, and a link to that link */
            unlink(temp_path("link"));
            assert_int_equal(symlink(way, temp_path("link")), 0);
            unlink(temp_path("second"));
            assert_int_equal(symlink("link", temp_path("second")), 0);
            before = temp_count();
            snprintf(way, sizeof way, "%s", temp_path(i == 3 ? "link" : "second"));
        }
        say(opened, "head ");
        expect_ok(put(way, "body "));
        say(opened, "tail");
        check(path, "head body tail");
        assert_int_equal(temp_count(), before);
        struct stat info, own;
        assert_true(stat(path, &info) == 0 && fstat(opened, &own) == 0);
        assert_int_equal(info.st_ino, own.st_ino);
        close(opened);
    }
}

/* Waits until the parent kills this process or exits because a check failed. */
static void wait_for_the_end(pid_t parent)
{
    while (getppid() == parent) poll(NULL, 0, 10);
}

/* A descriptor that is read-only or belongs to another process identifies its file but no position.
 * Output is appended. */
static void a_foreign_open_file_is_appended_to(void)
{
    char way[64], ready = 0;
    int ends[2];
    const char *path = temp_write("foreign", "old ", 4);
    if (access("/proc/self/fd", F_OK) != 0) skip();
    int reads = open(path, O_RDONLY);
    snprintf(way, sizeof way, "/proc/self/fd/%d", reads);
    expect_ok(put(way, "new "));
    close(reads);
    check(path, "old new ");
    assert_int_equal(pipe(ends), 0);
    const pid_t parent = getpid(), child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int opened = open(path, O_WRONLY);
        if (dup2(opened, 77) == 77 && write(ends[1], "x", 1) == 1) wait_for_the_end(parent);
        _exit(1);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    snprintf(way, sizeof way, "/proc/%ld/fd/77", (long)child);
    expect_ok(put(way, "newer"));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    check(path, "old new newer");
}

/* Links in an ordinary folder with the name fd are ordinary links. */
static void a_folder_called_fd(void)
{
    struct stat before, after;
    const char *path = temp_write("fd/file", "first", 5), *link = temp_path("fd/1");
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(stat(path, &before), 0);
    expect_ok(put(link, "second"));
    check(path, "second");
    assert_true(lstat(link, &after) == 0 && S_ISLNK(after.st_mode));
    assert_true(stat(path, &after) == 0 && after.st_ino != before.st_ino);
}

static void pipes_and_sockets(void)
{
    char text[16] = "", way[64];
    const char *pipe = temp_path("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    const int end = open(pipe, O_RDWR);
    assert_true(end >= 0);
    expect_ok(put(pipe, "through"));
    assert_int_equal(read(end, text, sizeof text), 7);
    assert_string_equal(text, "through");
    close(end);
    struct stat info;
    assert_true(stat(pipe, &info) == 0 && S_ISFIFO(info.st_mode));
    int ends[2];
    if (access("/proc/self/fd", F_OK) != 0) skip();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    snprintf(way, sizeof way, "/dev/fd/%d", ends[0]);
    expect_ok(put(way, "a socket"));
    assert_int_equal(read(ends[1], text, sizeof text), 8);
    assert_memory_equal(text, "a socket", 8);
    close(ends[0]);
    close(ends[1]);
}

/* ---- folders of the library ------------------------------------------------------------------ */

static void links_in_our_folder_are_replaced(void)
{
    struct stat info;
    const char *precious = temp_write("precious", "precious", 8);
    const char *folder = temp_path("ours"), *name = temp_path("ours/name");
    expect_ok(put_in(folder, "name", "first")); /* makes the folder */
    check(name, "first");
    assert_int_equal(chmod(name, 0640), 0);
    expect_ok(put_in(folder, "name", "second"));
    assert_true(stat(name, &info) == 0 && (info.st_mode & 0777) == 0640);
    const char *targets[] = {precious, "../precious", "nowhere", "name"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(unlink(name), 0);
        assert_int_equal(symlink(targets[i], name), 0);
        expect_ok(put_in(folder, "name", "third"));
        assert_true(lstat(name, &info) == 0 && S_ISREG(info.st_mode));
        check(name, "third");
        check(precious, "precious");
    }
    assert_int_equal(unlink(name), 0);
    assert_int_equal(mkfifo(name, 0600), 0); /* opening it would block: it has no reader */
    expect_ok(put_in(folder, "name", "fourth"));
    check(name, "fourth");
    assert_int_equal(link(name, temp_path("other")), 0); /* the file stays under a second name */
    expect_ok(put_in(folder, "name", "fifth"));
    check(temp_path("other"), "fourth");
    if (geteuid() != 0) {
        assert_int_equal(chmod(name, 0400), 0);
        expect_error(put_in(folder, "name", "x"), MHA_ERR_WRITE, "cannot write");
    }
    assert_int_equal(parts_in(folder), 0);
}

static void our_folder_is_looked_up_once(void)
{
    mha_file *file = NULL;
    expect_ok(put_in(temp_path("real"), "name", "old"));
    assert_int_equal(symlink("real", temp_path("alias")), 0);
    expect_ok(mha_file_create_in(temp_path("alias"), "name", &file));
    assert_int_equal(rename(temp_path("real"), temp_path("moved")), 0);
    assert_int_equal(mkdir(temp_path("real"), 0777), 0);
    expect_ok(finish(file, MHA_OK, "new"));
    check(temp_path("moved/name"), "new");
    assert_int_equal(rmdir(temp_path("real")), 0); /* empty */
}

static void our_folder_refuses(void)
{
    mha_file *file = NULL;
    const char *folder = temp_path("refuses");
    const char *names[] = {"", ".", "..", "a/b", "/a", "a/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_error(put_in(folder, names[i], "x"), MHA_ERR_ARGUMENT, "not the name of a file");
    assert_int_not_equal(access(folder, F_OK), 0);
    expect_error(mha_file_create_in(NULL, "a", &file), MHA_ERR_NULL, "folder");
    expect_error(mha_file_create_in(folder, NULL, &file), MHA_ERR_NULL, "name");
    expect_error(mha_file_create_in(folder, "a", NULL), MHA_ERR_NULL, "file");
    expect_error(put_in(temp_path("no/where"), "a", "x"), MHA_ERR_WRITE,
                 "cannot create the folder");
    temp_write("plain", "x", 1);
    expect_error(put_in(temp_path("plain"), "a", "x"), MHA_ERR_WRITE, "not a folder");
    expect_error(put_in(temp_path("plain/b"), "a", "x"), MHA_ERR_WRITE, "not a folder");
    assert_int_equal(put_in(temp_path("refuses///"), "a", "x"), MHA_OK);
    assert_int_equal(mkdir(temp_path("refuses/sub"), 0777), 0);
    expect_error(put_in(folder, "sub", "x"), MHA_ERR_WRITE, "directory");
    assert_int_equal(parts_in(folder), 0);
}

/* ---- leftovers of killed writers ------------------------------------------------------------- */

/* Start a process that begins a file and does not finish it. Returns after the beginning. */
static pid_t writer(const char *path)
{
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    const pid_t parent = getpid(), child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mha_file *file;
        if (mha_file_create(path, &file) == MHA_OK && write(ends[1], "x", 1) == 1)
            wait_for_the_end(parent);
        _exit(1);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void end(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void what_is_left_behind_goes(void)
{
    assert_int_equal(mkdir(temp_path("left"), 0777), 0);
    const char *folder = temp_path("left"), *path = temp_path("left/file");
    pid_t first = writer(path), second = writer(path), third = writer(path);
    assert_int_equal(parts_in(folder), 3);
    end(second);
    expect_ok(put(path, "one")); /* removes leftovers only */
    assert_int_equal(parts_in(folder), 2);
    end(first);
    end(third);
    expect_ok(put_in(folder, "another", "")); /* other files' leftovers stay */
    assert_int_equal(parts_in(folder), 2);
    expect_ok(put_in(folder, "file", "two"));
    assert_int_equal(parts_in(folder), 0);
    check(path, "two");
}

/* Two writers of one file in one process: locks belong to open files, not to the process. */
static void two_at_once(void)
{
    mha_file *a = NULL, *b = NULL;
    const char *path = temp_path("twice");
    expect_ok(mha_file_create(path, &a));
    expect_ok(mha_file_create(path, &b));
    expect_ok(finish(a, MHA_OK, "a"));
    check(path, "a");
    expect_ok(put(path, "c"));
    expect_ok(finish(b, MHA_OK, "b"));
    check(path, "b");
}

/* Objects with the name of a leftover that are not regular files are skipped, and their targets
 * too. */
static void strange_names_are_passed_over(void)
{
    struct stat info;
    const char *folder = temp_path("strange"), *precious = temp_write("keep", "precious", 8);
    expect_ok(put_in(folder, "file", "old"));
    assert_int_equal(symlink("../keep", temp_path("strange/file.mha-0.part")), 0);
    assert_int_equal(mkfifo(temp_path("strange/file.mha-1.part"), 0600), 0);
    assert_int_equal(mkdir(temp_path("strange/file.mha-2.part"), 0777), 0);
    expect_ok(put_in(folder, "file", "new"));
    check(temp_path("strange/file"), "new");
    check(precious, "precious");
    assert_int_equal(parts_in(folder), 3);
    assert_true(lstat(temp_path("strange/file.mha-0.part"), &info) == 0 && S_ISLNK(info.st_mode));
}

/* Many processes write one file and some are killed: surviving writers lose nothing, the file is always one of the
 * texts, and the last writer leaves nothing else. */
static void writers_do_not_harm_each_other(void)
{
    enum { WRITERS = 6, TIMES = 150, BYTES = 3000 };
    char texts[WRITERS][BYTES + 1];
    pid_t children[WRITERS];
    const pid_t parent = getpid();
    assert_int_equal(mkdir(temp_path("many"), 0777), 0);
    const char *folder = temp_path("many"), *path = temp_path("many/file");
    for (int i = 0; i < WRITERS; i++) {
        memset(texts[i], 'a' + i, BYTES);
        texts[i][BYTES] = '\0';
    }
    expect_ok(put(path, texts[0]));
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            for (int n = 0; n < TIMES || (i % 2 == 0 && getppid() == parent);
                 n++) /* processes of even number write until they are killed */
                if (put(path, texts[i]) != MHA_OK) {
                    fprintf(stderr, "writer %d: %s\n", i, mha_error_detail());
                    _exit(1);
                }
            _exit(0);
        }
    }
    for (int i = 1; i < WRITERS; i += 2) {
        int how;
        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        char *found = temp_read(path, NULL);
        assert_true(found[0] >= 'a' && found[0] < 'a' + WRITERS);
        assert_string_equal(found, texts[found[0] - 'a']);
        free(found);
        int ended = waitpid(children[i - 1], &how, WNOHANG);
        assert_int_equal(ended, 0); /* still running, without an error */
        end(children[i - 1]);
    }
    expect_ok(put(path, "the last"));
    check(path, "the last");
    assert_int_equal(parts_in(folder), 0);
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(shared_memory_is_no_device),
                  TEST(an_open_file_goes_on), TEST(a_foreign_open_file_is_appended_to),
                  TEST(a_folder_called_fd), TEST(pipes_and_sockets),
                  TEST(links_in_our_folder_are_replaced), TEST(our_folder_is_looked_up_once),
                  TEST(our_folder_refuses), TEST(what_is_left_behind_goes), TEST(two_at_once),
                  TEST(strange_names_are_passed_over), TEST(writers_do_not_harm_each_other))
