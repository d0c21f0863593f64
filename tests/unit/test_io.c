/* SPDX-License-Identifier: Apache-2.0 */
/* The POSIX I/O table on a real file system, and its helpers, with short and interrupted transfers. */
#include "base/ioutil.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fsdpck_io *const io = &fsdpck_io_posix;
static char dir[] = "/tmp/fsdpck-test-io-XXXXXX";

static const char *at(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const char *text)
{
    struct fsdpck_error err = { 0 };
    unlink(at(name));
    assert_int_equal(fsdpck_write_file(io, at(name), text, strlen(text), &err), 0);
}

static void assert_holds(const char *name, const char *text)
{
    struct fsdpck_error err = { 0 };
    char *got = NULL;
    uint64_t nbytes = 0;
    assert_int_equal(fsdpck_read_file(io, at(name), 1 << 20, &got, &nbytes, &err), 0);
    assert_int_equal(nbytes, strlen(text));
    assert_string_equal(got, text);
    free(got);
}

static void create_never_replaces(void **state)
{
    (void)state;
    put("a", "hello");
    assert_int_equal(io->open(NULL, at("a"), FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666), -EEXIST);
    assert_int_equal(io->open(NULL, at("missing"), FSDPCK_OPEN_WRITE, 0666), -ENOENT);
    assert_int_equal(symlink(at("nowhere"), at("dangling")), 0);
    assert_int_equal(io->open(NULL, at("dangling"), FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666), -EEXIST);
    assert_int_equal(io->open(NULL, at("a"), FSDPCK_OPEN_READ | FSDPCK_OPEN_DIRECTORY, 0), -ENOTDIR);
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_write_file(io, at("a"), "x", 1, &err), FSDPCK_ERR_IO);
    assert_int_equal(err.sys_errno, EEXIST);
    assert_holds("a", "hello");
    io->unlink(NULL, at("dangling"));
}

static void transfers_and_sizes(void **state)
{
    (void)state;
    char buf[16] = { 0 };
    struct fsdpck_stat st;
    int fd = io->open(NULL, at("rw"), FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0600);
    assert_true(fd >= 0);
    assert_int_equal(io->pwrite(NULL, fd, "abcdef", 6, 10), 6);
    assert_int_equal(io->pread(NULL, fd, buf, sizeof buf, 8), 8);
    assert_memory_equal(buf, "\0\0abcdef", 8);
    assert_int_equal(io->pread(NULL, fd, buf, sizeof buf, 100), 0);
    assert_int_equal(io->pread(NULL, fd, buf, 1, (uint64_t)1 << 63), -EINVAL);
    assert_int_equal(io->truncate(NULL, fd, 4), 0);
    assert_int_equal(io->fstat(NULL, fd, &st), 0);
    assert_int_equal(st.nbytes, 4);
    assert_int_equal(st.type, FSDPCK_FILE_REGULAR);
    int rc = io->allocate(NULL, fd, 100000);
    assert_true(rc == 0 || rc == -EOPNOTSUPP);
    assert_int_equal(io->fstat(NULL, fd, &st), 0);
    assert_int_equal(st.nbytes, rc == 0 ? 100000 : 4);
    assert_int_equal(io->fsync(NULL, fd), 0);
    assert_int_equal(io->close(NULL, fd), 0);
    assert_int_equal(io->close(NULL, fd), -EBADF);
    fd = io->open(NULL, at("empty"), FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0600);
    assert_int_equal(io->allocate(NULL, fd, 0), 0);
    io->close(NULL, fd);
}

static void cached_reads_tell_the_truth(void **state)
{
    (void)state;
    char buf[64];
    put("cached", "some text");
    int fd = io->open(NULL, at("cached"), FSDPCK_OPEN_READ, 0);
    int64_t n = io->pread_cached(NULL, fd, buf, sizeof buf, 5);
    assert_true(n == -EAGAIN || n == -EOPNOTSUPP || (n > 0 && n <= 4));
    if (n > 0)
        assert_memory_equal(buf, "text", (size_t)n);
    io->close(NULL, fd);
}

static void memory_is_told_from_disks(void **state)
{
    (void)state;
    const int here = io->in_memory(NULL, at("."));
    assert_true(here == 0 || here == 1);
    assert_int_equal(io->in_memory(NULL, "/proc"), 0);
    assert_int_equal(io->in_memory(NULL, at("not there")), -ENOENT);
    if (access("/dev/shm", W_OK) == 0)
        assert_int_equal(io->in_memory(NULL, "/dev/shm"), 1);
}

static void stat_types_and_links(void **state)
{
    (void)state;
    struct fsdpck_stat st, target;
    put("target", "12345");
    assert_int_equal(symlink("target", at("link")), 0);
    assert_int_equal(io->stat(NULL, at("target"), true, &target), 0);
    assert_int_equal(io->stat(NULL, at("link"), true, &st), 0);
    assert_int_equal(st.nbytes, 5);
    assert_true(st.inode == target.inode && st.device == target.device && st.mtime_ns == target.mtime_ns);
    assert_true(st.mtime_ns > 0 && llabs(io->now_ns(NULL) - st.mtime_ns) < (int64_t)86400 * 1000000000);
    assert_int_equal(io->stat(NULL, at("link"), false, &st), 0);
    assert_int_equal(st.type, FSDPCK_FILE_SYMLINK);
    assert_int_equal(io->stat(NULL, dir, true, &st), 0);
    assert_int_equal(st.type, FSDPCK_FILE_DIRECTORY);
    assert_int_equal(io->stat(NULL, "/dev/null", true, &st), 0);
    assert_int_equal(st.type, FSDPCK_FILE_OTHER);
    assert_int_equal(io->stat(NULL, at("missing"), true, &st), -ENOENT);
    assert_true(fsdpck_is_file(io, at("link")) && !fsdpck_is_file(io, dir) && !fsdpck_is_file(io, at("missing")));
    assert_true(fsdpck_is_directory(io, dir) && !fsdpck_is_directory(io, at("link")));

    char full[4096], again[4096];
    assert_int_equal(io->resolve(NULL, at("link"), full, sizeof full), 0);
    assert_int_equal(io->resolve(NULL, at("./target"), again, sizeof again), 0);
    assert_string_equal(full, again);
    assert_int_equal(io->resolve(NULL, at("link"), again, strlen(full)), -ENAMETOOLONG);
    assert_int_equal(io->resolve(NULL, at("missing"), again, sizeof again), -ENOENT);
}

static void renames(void **state)
{
    (void)state;
    put("r1", "one");
    put("r2", "two");
    int rc = io->exchange(NULL, at("r1"), at("r2"));
    assert_true(rc == 0 || rc == -EINVAL);
    assert_holds("r1", rc == 0 ? "two" : "one");
    put("r1", "one");
    put("r2", "two");
    rc = io->rename_new(NULL, at("r1"), at("r2"));
    assert_true(rc == -EEXIST || rc == -EINVAL);
    assert_holds("r2", "two");
    if (rc == -EEXIST) {
        assert_int_equal(io->rename_new(NULL, at("r1"), at("r3")), 0);
        assert_int_equal(io->rename(NULL, at("r3"), at("r1")), 0);
    }
    assert_int_equal(io->rename(NULL, at("r1"), at("r2")), 0);
    assert_holds("r2", "one");
    assert_int_equal(io->rename(NULL, at("r1"), at("r2")), -ENOENT);
}

static int stop_at_once(void *ctx, const char *name)
{
    (void)name;
    ++*(int *)ctx;
    return 42;
}

static void directories(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    char **names = NULL;
    size_t count = 1;
    int calls = 0;
    assert_int_equal(io->mkdir(NULL, at("d"), 0777), 0);
    assert_int_equal(io->mkdir(NULL, at("d"), 0777), -EEXIST);
    assert_int_equal(fsdpck_list_sorted(io, at("d"), &names, &count, &err), 0);
    assert_int_equal(count, 0);
    fsdpck_list_free(names, count);
    put("d/b", "");
    put("d/.hidden", "");
    put("d/B", "");
    put("d/\xc3\xa9", "");
    assert_int_equal(fsdpck_list_sorted(io, at("d"), &names, &count, &err), 0);
    assert_int_equal(count, 4);
    static const char *const want[] = { ".hidden", "B", "b", "\xc3\xa9" };
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(names[i], want[i]);
    fsdpck_list_free(names, count);
    assert_int_equal(io->list(NULL, at("d"), stop_at_once, &calls), 42);
    assert_int_equal(calls, 1);
    assert_int_equal(fsdpck_fsync_path(io, at("d"), &err), 0);
    assert_int_equal(fsdpck_fsync_path(io, at("d/b"), &err), 0);
    assert_int_equal(io->rmdir(NULL, at("d")), -ENOTEMPTY);
    assert_int_equal(fsdpck_list_sorted(io, at("missing"), &names, &count, &err), FSDPCK_ERR_MISSING);
    assert_non_null(strstr(err.message, "cannot list: No such file"));
    for (size_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "d/%s", want[i]);
        assert_int_equal(io->unlink(NULL, at(name)), 0);
    }
    assert_int_equal(io->rmdir(NULL, at("d")), 0);
}

static void locks_belong_to_the_open_file(void **state)
{
    (void)state;
    put("lock", "");
    int first = io->open(NULL, at("lock"), FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE, 0);
    int second = io->open(NULL, at("lock"), FSDPCK_OPEN_READ | FSDPCK_OPEN_WRITE, 0);
    int reader = io->open(NULL, at("lock"), FSDPCK_OPEN_READ, 0);
    assert_int_equal(io->lock_probe(NULL, second), 0);
    assert_int_equal(io->lock(NULL, first), 0);
    assert_int_equal(io->lock(NULL, first), 0);
    assert_int_equal(io->lock(NULL, second), -EAGAIN);
    assert_int_equal(io->lock_probe(NULL, second), 1);
    assert_int_equal(io->lock_probe(NULL, reader), 1);
    assert_int_equal(io->lock_probe(NULL, first), 0);
    io->close(NULL, first);
    assert_int_equal(io->lock_probe(NULL, reader), 0);
    assert_int_equal(io->lock(NULL, second), 0);
    io->close(NULL, second);
    io->close(NULL, reader);
}

static void random_bytes_differ(void **state)
{
    (void)state;
    uint8_t a[1000] = { 0 }, b[1000] = { 0 };
    assert_int_equal(io->random(NULL, a, sizeof a), 0);
    assert_int_equal(io->random(NULL, b, sizeof b), 0);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a + 984, b + 984, 16);
}

/* A table whose transfers are interrupted every other time and move at most three bytes. */
static unsigned calls;
static bool dead;

static int64_t stingy_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    return calls++ % 2 == 0 ? -EINTR : io->pread(ctx, fd, buf, nbytes < 3 ? nbytes : 3, offset);
}

static int64_t stingy_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    if (dead)
        return calls++ < 4 ? io->pwrite(ctx, fd, buf, 1, offset) : -ENOSPC;
    return calls++ % 2 == 0 ? -EINTR : io->pwrite(ctx, fd, buf, nbytes < 3 ? nbytes : 3, offset);
}

static int64_t writes_nothing(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    if (++calls > 1000)
        fail_msg("a write that takes nothing is tried for ever");
    return 0;
}

static void short_and_interrupted_transfers(void **state)
{
    (void)state;
    struct fsdpck_io stingy = *io;
    struct fsdpck_error err = { 0 };
    const char *text = "the quick brown fox jumps over the lazy dog";
    char *got = NULL;
    uint64_t nbytes = 0;
    stingy.pread = stingy_pread;
    stingy.pwrite = stingy_pwrite;
    assert_int_equal(fsdpck_write_file(&stingy, at("fox"), text, strlen(text), &err), 0);
    assert_int_equal(fsdpck_read_file(&stingy, at("fox"), 43, &got, &nbytes, &err), 0);
    assert_string_equal(got, text);
    free(got);

    dead = true;
    calls = 0;
    assert_int_equal(fsdpck_write_file(&stingy, at("half"), text, strlen(text), &err), FSDPCK_ERR_IO);
    assert_int_equal(err.sys_errno, ENOSPC);
    assert_string_equal(err.message, "cannot write 39 bytes at 4: No space left on device");
    assert_false(fsdpck_is_file(io, at("half")));

    struct fsdpck_error nothing = { 0 };
    stingy.pwrite = writes_nothing;
    calls = 0;
    assert_int_equal(fsdpck_write_file(&stingy, at("half"), text, strlen(text), &nothing), FSDPCK_ERR_IO);
    assert_int_equal(nothing.sys_errno, EIO);
}

static void files_that_end_early(void **state)
{
    (void)state;
    char buf[64], line[512];
    struct fsdpck_error err = { 0 };
    put("short", "0123456789");
    int fd = io->open(NULL, at("short"), FSDPCK_OPEN_READ, 0);
    assert_int_equal(fsdpck_read_full(io, fd, "short", buf, 10, 0, &err), 0);
    assert_int_equal(fsdpck_read_full(io, fd, "short", buf, 0, 99, &err), 0);
    assert_int_equal(fsdpck_read_full(io, fd, "short", buf, 8, 4, &err), FSDPCK_ERR_MISSING);
    assert_string_equal(fsdpck_error_format(&err, line, sizeof line),
                        "short@10: file ends at 10, 8 bytes are wanted at 4");
    struct fsdpck_error beyond = { 0 };
    assert_int_equal(fsdpck_read_full(io, fd, "short", buf, 8, 400, &beyond), FSDPCK_ERR_MISSING);
    assert_string_equal(beyond.message, "file ends at 10, 8 bytes are wanted at 400");
    io->close(NULL, fd);
}

static void what_read_file_refuses(void **state)
{
    (void)state;
    char *got = NULL;
    uint64_t nbytes = 0;
    struct fsdpck_error large = { 0 }, folder = { 0 }, missing = { 0 }, pipe = { 0 };
    put("ten", "0123456789");
    assert_int_equal(fsdpck_read_file(io, at("ten"), 9, &got, &nbytes, &large), FSDPCK_ERR_LIMIT);
    assert_string_equal(large.message, "file has 10 bytes, at most 9 are read");
    assert_int_equal(fsdpck_read_file(io, dir, 9, &got, &nbytes, &folder), FSDPCK_ERR_FORMAT);
    assert_int_equal(fsdpck_read_file(io, at("missing"), 9, &got, &nbytes, &missing), FSDPCK_ERR_MISSING);
    assert_string_equal(missing.message, "cannot open: No such file or directory");
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    assert_int_equal(fsdpck_read_file(io, at("fifo"), 9, &got, &nbytes, &pipe), FSDPCK_ERR_FORMAT);
    assert_null(got);
}

static void assert_joined(const char *parent, const char *name, const char *want)
{
    char *path = fsdpck_path_join(parent, name, NULL);
    assert_string_equal(path, want);
    free(path);
}

static void paths(void **state)
{
    (void)state;
    assert_joined("a", "b", "a/b");
    assert_joined("a/", "b", "a/b");
    assert_joined("/", "b", "/b");
    assert_joined("", "b", "b");
    static const char *const plain[] = { "a", "a/b.c/d", "...", ".hidden", "a/..b", "caf\xc3\xa9", "a b" };
    static const char *const other[] = { "",      "/a",   "a/",   "a//b", ".",     "..",
                                         "a/./b", "../a", "a/..", "a\nb", "a\x7f", "\x01" };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_true(fsdpck_path_is_plain(plain[i]));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(fsdpck_path_is_plain(other[i]));
    char longest[4097];
    memset(longest, 'a', sizeof longest);
    longest[4096] = '\0';
    assert_false(fsdpck_path_is_plain(longest));
    longest[4095] = '\0';
    assert_true(fsdpck_path_is_plain(longest));
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    char **names = NULL;
    size_t count = 0;
    fsdpck_list_sorted(io, dir, &names, &count, &err);
    for (size_t i = 0; i < count; i++)
        io->unlink(NULL, at(names[i]));
    fsdpck_list_free(names, count);
    return io->rmdir(NULL, dir);
}

/* Exceeding a file size limit would raise SIGXFSZ, which by default ends the process. */
static void a_limit_on_sizes_is_an_error(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit limit = { 100, 100 };
        char bytes[101] = { 0 };
        signal(SIGXFSZ, SIG_DFL);
        int fd = io->open(io->ctx, at("limited"), FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666);
        bool ok = setrlimit(RLIMIT_FSIZE, &limit) == 0 && io->pwrite(io->ctx, fd, bytes, 100, 0) == 100 &&
                  io->pwrite(io->ctx, fd, bytes, 101, 0) == -EFBIG &&
                  io->pwrite(io->ctx, fd, bytes, 1, 100) == -EFBIG && io->truncate(io->ctx, fd, 101) == -EFBIG &&
                  io->allocate(io->ctx, fd, 101) == -EFBIG;
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unlink(at("limited"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_never_replaces),
        cmocka_unit_test(transfers_and_sizes),
        cmocka_unit_test(cached_reads_tell_the_truth),
        cmocka_unit_test(memory_is_told_from_disks),
        cmocka_unit_test(stat_types_and_links),
        cmocka_unit_test(renames),
        cmocka_unit_test(directories),
        cmocka_unit_test(locks_belong_to_the_open_file),
        cmocka_unit_test(random_bytes_differ),
        cmocka_unit_test(short_and_interrupted_transfers),
        cmocka_unit_test(files_that_end_early),
        cmocka_unit_test(what_read_file_refuses),
        cmocka_unit_test(paths),
        cmocka_unit_test(a_limit_on_sizes_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
