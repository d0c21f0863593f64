/* SPDX-License-Identifier: Apache-2.0 */
/* The token cache: damaged; and built by many threads and processes at once, some of which are killed. And the parts
 * into which files are cut for it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <cmocka.h>

#include "../support/sanitized.h"
#include "data/data_hash.h"
#include "data/data_parts.h"
#include "data_case.h"

/* The only file in output_dir/cache. */
static const char *cache_file(const struct train_config *config)
{
    static char path[PATH + 200];
    char command[PATH + 100];
    snprintf(command, sizeof command, "ls %s/cache/tokens-*.bin", config->output_dir);
    FILE *f = popen(command, "re");
    assert_non_null(fgets(path, sizeof path, f));
    pclose(f);
    path[strcspn(path, "\n")] = '\0';
    return path;
}

static void test_cache(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("c.jsonl", CHAT TEXT), 1 };
    const struct train_config config = config_of(&file, 1);
    struct data *d = open_data(&config);
    uint64_t whole = data_fingerprint(d);
    assert_non_null(d->map);
    assert_non_null(strstr(notes, "kept in"));
    data_close(d);
    notes[0] = '\0';
    data_close(open_data(&config));
    assert_non_null(strstr(notes, "; from "));

    /* hashes cover every byte: a changed or truncated cache is rebuilt */
    const char *path = cache_file(&config);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (long at = 0; at < st.st_size; at += SANITIZED ? 287 : 41) {
        FILE *f = fopen(path, "r+be");
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        fputc(c ^ 16, f);
        fclose(f);
        notes[0] = '\0';
        d = open_data(&config);
        assert_non_null(strstr(notes, "kept in"));
        assert_int_equal(data_fingerprint(d), whole);
        data_close(d);
    }
    assert_int_equal(truncate(path, st.st_size / 2), 0);
    d = open_data(&config);
    assert_int_equal(data_fingerprint(d), whole);
    data_close(d);

    /* other data or settings use another file */
    struct train_config other = config;
    other.data.loss_on = CHAT_LOSS_ALL;
    notes[0] = '\0';
    data_close(open_data(&other));
    assert_non_null(strstr(notes, "kept in"));
}

/* Writes lines of many lengths, from short ones to lines that span several parts. */
static const char *write_lines(const char *name, size_t wanted)
{
    char *text = malloc(wanted + 100000), *at = text;
    for (unsigned i = 0; (size_t)(at - text) < wanted; i++) {
        unsigned n = i % 97 == 96 ? 40000 : i % 31 * 9;
        at += sprintf(at, "{\"text\":\"%u ", i);
        for (unsigned w = 0; w < n; w++)
            *at++ = w % 7 == 6 ? ' ' : (char)('a' + (i + w * w) % 26);
        at += sprintf(at, "\"}\n");
    }
    const char *path = write_bytes(name, text, (size_t)(at - text));
    free(text);
    return path;
}

/* Parts of any size together make the file. Each begins with the first line after its multiple; parts may be skipped.
 */
static void test_parts(void **state)
{
    (void)state;
    const struct train_data_file file = { write_lines("p.jsonl", 3000000), 1 };
    const struct train_config config = config_of(&file, 1);
    struct data_part part = { 0 };
    struct data_parts *parts;
    struct fsdpck_error err = { 0 };
    bool end = false;
    struct stat st;
    assert_int_equal(stat(file.path, &st), 0);
    char *whole = malloc((size_t)st.st_size);
    FILE *f = fopen(file.path, "rbe");
    assert_int_equal(fread(whole, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    size_t packed_nbytes = ZSTD_compressBound((size_t)st.st_size), number;
    char *packed = malloc(packed_nbytes);
    packed_nbytes = ZSTD_compress(packed, packed_nbytes, whole, (size_t)st.st_size, 1);
    const struct train_data_file zstd = { write_bytes("p.zst", packed, packed_nbytes), 1 };
    const struct train_config both[] = { config, config_of(&zstd, 1) };
    for (int i = 0; i < 4; i++) { /* plain, packed; all parts, every third */
        size_t at = 0, n = 0;
        uint64_t line = 1;
        assert_int_equal(data_parts_open(&both[i % 2], &parts, &err), 0);
        for (;; n++) {
            assert_int_equal(data_parts_step(parts, &number, &end, &err), 0);
            if (end)
                break;
            assert_int_equal(number, n);
            if (i > 1 && n % 3)
                continue;
            assert_int_equal(data_parts_take(parts, &part, &err), 0);
            assert_true(i > 1 || part.begin == at);
            assert_memory_equal(part.text, whole + part.begin, part.nbytes);
            assert_true(part.nbytes == 0 || part.text[part.nbytes - 1] == '\n');
            assert_int_equal(data_count_lines(both[i % 2].data.files[0].path, part.begin, &line, &err), 0);
            assert_true(part.line == 0 || part.line == line + 1);
            assert_true(part.line > 0 || i % 2 == 0);
            at += part.nbytes;
        }
        assert_true(n > 100 && (i > 1 || at == (size_t)st.st_size));
        data_parts_close(parts);
    }
    free(part.text);
    free(packed);
    free(whole);
}

static uint64_t hash_of(const char *path)
{
    uint64_t hash = 0;
    struct fsdpck_error err = { 0 };
    assert_int_equal(data_file_hash(path, &hash, &err), 0);
    return hash;
}

/* most_nbytes: the kernel kills the process when a file would grow beyond it; 0: no limit. */
static pid_t start_limited(const struct train_config *config, unsigned nthreads, uint64_t most_nbytes)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (most_nbytes > 0 && (signal(SIGXFSZ, SIG_DFL) == SIG_ERR ||
                                setrlimit(RLIMIT_FSIZE, &(struct rlimit){ most_nbytes, most_nbytes })))
            _exit(1);
        const struct fsdpck_options opt = { .nthreads = nthreads };
        struct fsdpck_error err = { 0 };
        struct data *d;
        int rc = data_open(config, NVOCAB, &opt, &d, &err);
        data_close(d);
        _exit(rc == 0 ? 0 : rc == FSDPCK_ERR_FORMAT && strstr(err.message, "line 5001: ") ? 5 : 1);
    }
    assert_true(pid > 0);
    return pid;
}

static pid_t start_builder(const struct train_config *config, unsigned nthreads)
{
    return start_limited(config, nthreads, 0);
}

/* Starts a build that is killed after it has written nbytes. */
static void start_and_kill(const struct train_config *config, uint64_t nbytes)
{
    int status;
    assert_true(waitpid(start_limited(config, 1, nbytes), &status, 0) > 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
}

/* Waits for the builds and checks that cache/ contains one file. */
static void only_one_file(const struct train_config *config)
{
    char command[PATH + 100], count[20] = "";
    snprintf(command, sizeof command, "ls %s/cache | wc -l", config->output_dir);
    FILE *f = popen(command, "re");
    assert_non_null(fgets(count, sizeof count, f));
    pclose(f);
    assert_int_equal(atoi(count), 1);
}

/* Any number of threads and processes build the same bytes, even if some or all of them are killed. */
static void test_built_together(void **state)
{
    (void)state;
    const struct train_data_file files[] = { { write_lines("1.jsonl", 800000), 1 },
                                             { write_lines("2.jsonl", 300000), 1 } };
    const struct train_config config = config_of(files, 2);
    unsigned seed = 1;
    int status;
    assert_int_equal(
        waitpid(start_builder(&config, 1), &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
    char path[PATH + 200];
    snprintf(path, sizeof path, "%s", cache_file(&config));
    uint64_t whole = hash_of(path);
    for (int round = 0; round < (SANITIZED ? 6 : 24); round++) {
        pid_t pids[4];
        int n = 1 + round % 4, nleft = 0;
        assert_int_equal(unlink(path), 0);
        for (int i = 0; i < n; i++)
            pids[i] = start_builder(&config, 1 + (unsigned)i % 2);
        for (int i = 0; i < n - (round % 3 != 0); i++) { /* every third round kills all of them */
            nanosleep(&(struct timespec){ .tv_nsec = rand_r(&seed) % 30000000 }, NULL);
            kill(pids[i], SIGKILL);
        }
        for (int i = 0; i < n; i++) {
            assert_true(waitpid(pids[i], &status, 0) > 0);
            nleft += WIFEXITED(status);
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        }
        if (nleft == 0) /* the next run resumes */
            assert_int_equal(
                waitpid(start_builder(&config, 2), &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
        assert_int_equal(hash_of(path), whole);
        only_one_file(&config);
    }
}

/* A part that a dead process had claimed does not block the build for ever, but waiting for that takes long. Parts that
 * a killed process had finished are not built again. */
static void test_goes_on(void **state)
{
    (void)state;
    const struct train_data_file file = { write_lines("g.jsonl", 1000000), 1 };
    const struct train_config config = config_of(&file, 1);
    struct stat before = { 0 }, after;
    char building[PATH + 300];
    struct data *d = open_data(&config);
    data_close(d);
    snprintf(building, sizeof building, "%s.part", cache_file(&config));
    uint64_t whole = hash_of(cache_file(&config));
    char path[PATH + 200];
    snprintf(path, sizeof path, "%s", cache_file(&config));
    assert_int_equal(unlink(path), 0);
    start_and_kill(&config, 200000);
    assert_int_equal(stat(building, &before), 0);
    volatile int stop = 1;
    const struct fsdpck_options opt = { .stop = &stop, .nthreads = 1 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(data_open(&config, NVOCAB, &opt, &d, &err), FSDPCK_ERR_STOPPED);
    assert_int_equal(stat(building, &after), 0);
    assert_true(after.st_ino == before.st_ino && after.st_size >= before.st_size);
    data_close(open_data(&config));
    assert_int_equal(hash_of(path), whole);

    /* left-overs of other data are removed when no process uses them */
    char left[PATH + 400];
    snprintf(left, sizeof left, "%s/cache/tokens-0123456789abcdef.bin.lock", config.output_dir);
    assert_int_equal(close(open(left, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)), 0);
    assert_int_equal(unlink(path), 0);
    data_close(open_data(&config));
    only_one_file(&config);
}

/* After a power loss an unfinished build may have the right length and wrong contents. */
static void test_damaged_beginning(void **state)
{
    (void)state;
    const struct train_data_file file = { write_lines("d.jsonl", 600000), 1 };
    const struct train_config config = config_of(&file, 1);
    data_close(open_data(&config));
    char path[PATH + 200], building[PATH + 300];
    snprintf(path, sizeof path, "%s", cache_file(&config));
    snprintf(building, sizeof building, "%s.part", path);
    uint64_t whole = hash_of(path);
    assert_int_equal(unlink(path), 0);
    start_and_kill(&config, 100000);
    FILE *f = fopen(building, "r+be");
    assert_non_null(f);
    assert_int_equal(fseek(f, 20000, SEEK_SET), 0);
    fputs("something else", f);
    fclose(f);
    data_close(open_data(&config));
    assert_int_equal(hash_of(path), whole);
}

/* With any number of processes, each reports the first bad line. */
static void test_bad_line_of_many(void **state)
{
    (void)state;
    enum { LINES = 9000 };
    char *lines = malloc(LINES * 64), *at = lines;
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, i == 5000 || (i > 5600 && i % 50 == 0) ? "{}\n" : TEXT);
    const struct train_data_file file = { write_text("many.jsonl", lines), 1 };
    free(lines);
    const struct train_config config = config_of(&file, 1);
    pid_t pids[4];
    for (int round = 0; round < 4; round++) {
        int status;
        for (int i = 0; i < 4; i++)
            pids[i] = start_builder(&config, 1 + (unsigned)i % 2);
        for (int i = 0; i < 4; i++)
            assert_true(waitpid(pids[i], &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_built_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_beginning, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_line_of_many, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
