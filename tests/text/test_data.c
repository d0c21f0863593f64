/* Text data: the forms of lines, what is supervised, bad lines, packed files, weights, and the token cache. */
#include <fcntl.h>
#include <ftw.h>
#include <libdeflate.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <cmocka.h>

#include "data/data_hash.h"
#include "data/data_impl.h"
#include "data/data_parts.h"

enum { NVOCAB = 1007, PATH = 512 };

static char folder[PATH];
static char notes[4000];

static const char *in_folder(const char *name)
{
    static char paths[8][PATH + 100];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *write_bytes(const char *name, const void *bytes, size_t nbytes)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *write_text(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    notes[0] = '\0';
    snprintf(folder, sizeof folder, "%s/fsdpck-data-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void note(void *ctx, const char *line)
{
    (void)ctx;
    strncat(notes, line, sizeof notes - strlen(notes) - 2);
    strcat(notes, "\n");
}

static struct train_config config_of(const struct train_data_file *files, size_t nfiles)
{
    static char out[PATH + 8], model[PATH];
    snprintf(out, sizeof out, "%s/out/run", folder);
    snprintf(model, sizeof model, "%s/qwen2", getenv("FSDPCK_TEXT_GOLDENS"));
    return (struct train_config){
        .model = model, .output_dir = out, .seed = 7,
        .data = { .train = files[0].path, .files = files, .nfiles = nfiles, .loss_on = "assistant", .on_bad_line = "stop", .too_long = "cut", .seq_len = 128, .packing = true },
        .train = { .micro_batch_size = 1, .global_batch_size = 1, .max_steps = 1 },
    };
}

static struct data *open_data(const struct train_config *config)
{
    const struct fsdpck_options opt = { .note = note };
    struct fsdpck_error err = { 0 };
    struct data *d;
    if (data_open(config, NVOCAB, &opt, &d, &err))
        fail_msg("%s", err.message);
    return d;
}

static void refused(const char *line, int code, const char *words)
{
    const struct train_data_file file = { write_text("bad.jsonl", line), 1 };
    const struct train_config config = config_of(&file, 1);
    struct fsdpck_error err = { 0 };
    struct data *d;
    assert_int_equal(data_open(&config, NVOCAB, NULL, &d, &err), code);
    assert_null(d);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not hold '%s'", err.message, words);
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":\"so\"},{\"role\":\"assistant\",\"content\":\"no\"}]}\n"
#define COMPLETION "{\"prompt\":\"two \",\"completion\":\"three\"}\n"
#define TEXT "{\"text\":\"plain\"}\n"
#define IDS "{\"input_ids\":[5,6,7],\"labels\":[-100,6,7]}\n"

static uint32_t supervised_of(const char *lines, const char *loss_on, size_t doc)
{
    const struct train_data_file file = { write_text("forms.jsonl", lines), 1 };
    struct train_config config = config_of(&file, 1);
    config.data.loss_on = loss_on;
    struct data *d = open_data(&config);
    uint32_t n = d->docs[doc].nsupervised;
    data_close(d);
    return n;
}

static void test_forms(void **state)
{
    (void)state;
    static const char all[] = CHAT COMPLETION TEXT IDS;
    uint32_t turns = supervised_of(all, "assistant", 0), last = supervised_of(all, "last_assistant", 0), every = supervised_of(all, "all", 0);
    assert_true(turns > last && last >= 2 && every > turns); /* "no" and its end token */
    assert_int_equal(supervised_of(all, "completion", 0), last);
    assert_true(supervised_of(all, "all", 1) > supervised_of(all, "completion", 1));
    assert_int_equal(supervised_of(all, "assistant", 1), supervised_of(all, "completion", 1));
    assert_true(supervised_of(all, "assistant", 2) >= 2);
    assert_int_equal(supervised_of(all, "all", 3), 2); /* labels are what they are */
}

static void test_ends_with_eos(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("t.jsonl", TEXT "{\"text\":\"plain<|im_end|>\"}\n"), 1 };
    const struct train_config config = config_of(&file, 1);
    struct data *d = open_data(&config);
    assert_int_equal(d->docs[0].ntok, d->docs[1].ntok); /* no second end token */
    assert_int_equal(d->docs[0].ids[d->docs[0].ntok - 1], 1002);
    data_close(d);
}

static void test_bad_lines(void **state)
{
    (void)state;
    refused(CHAT "{\"messages\":[]}\n", FSDPCK_ERR_FORMAT, "line 2: 'messages' is no list of at least one message");
    refused(CHAT "{\"messages\":[{\"content\":\"x\"}]}\n", FSDPCK_ERR_FORMAT, "line 2: message 0 has no role");
    refused(CHAT CHAT "{\"x\":1}\n", FSDPCK_ERR_FORMAT, "line 3: none of 'messages'");
    refused(CHAT "{\"text\":\n", FSDPCK_ERR_FORMAT, "line 2: ");
    refused(CHAT "\n" CHAT, FSDPCK_ERR_FORMAT, "line 2 is empty");
    refused(CHAT "{\"prompt\":\"a\"}\n", FSDPCK_ERR_FORMAT, "line 2: 'prompt' and 'completion' must both be strings");
    refused(CHAT "{\"input_ids\":[2000],\"labels\":[1]}\n", FSDPCK_ERR_FORMAT, "line 2, token 0: ids are whole numbers below the vocabulary's 1007");
    refused(CHAT "{\"messages\":[{\"role\":\"user\",\"content\":5}]}\n", FSDPCK_ERR_FORMAT, "line 2: ");
    refused(CHAT "[1]\n", FSDPCK_ERR_FORMAT, "line 2: an object is wanted");
    refused("", FSDPCK_ERR_FORMAT, "no document in it");
}

/* Of many bad lines the first is told, however many threads there are. */
static void test_first_bad_line(void **state)
{
    (void)state;
    enum { LINES = 2000 };
    char *lines = malloc(LINES * 64), *at = lines;
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, i >= 700 ? "{}\n" : TEXT);
    refused(lines, FSDPCK_ERR_FORMAT, "line 701: ");
    free(lines);
}

static void test_skip(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("s.jsonl", "{}\n" TEXT "\n" CHAT "{\"text\":1}\n"), 1 };
    struct train_config config = config_of(&file, 1);
    config.data.on_bad_line = "skip";
    for (int again = 0; again < 2; again++) { /* made, then from the cache */
        notes[0] = '\0';
        struct data *d = open_data(&config);
        assert_int_equal(d->ndocs, 2);
        assert_non_null(strstr(notes, "3 bad lines left out"));
        data_close(d);
    }
}

static uint64_t fingerprint_of(const char *path)
{
    const struct train_data_file file = { path, 1 };
    const struct train_config config = config_of(&file, 1);
    struct data *d = open_data(&config);
    uint64_t f = data_fingerprint(d);
    data_close(d);
    return f;
}

static void test_packed_files(void **state)
{
    (void)state;
    static const char lines[] = CHAT COMPLETION TEXT;
    char packed[4096];
    uint64_t plain = fingerprint_of(write_text("a.jsonl", lines));
    size_t n = ZSTD_compress(packed, sizeof packed, lines, strlen(lines), 3);
    assert_int_equal(plain, fingerprint_of(write_bytes("a.jsonl.zst", packed, n)));
    const struct train_data_file cut_zstd = { write_bytes("cut.zst", packed, n - 5), 1 };
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    n = libdeflate_gzip_compress(c, lines, strlen(CHAT), packed, sizeof packed); /* two members */
    n += libdeflate_gzip_compress(c, lines + strlen(CHAT), strlen(lines) - strlen(CHAT), packed + n, sizeof packed - n);
    libdeflate_free_compressor(c);
    assert_int_equal(plain, fingerprint_of(write_bytes("a.jsonl.gz", packed, n)));
    const struct train_data_file cut_gzip = { write_bytes("cut.gz", packed, n - 5), 1 };
    const struct train_data_file *const cut[] = { &cut_zstd, &cut_gzip };
    for (int i = 0; i < 2; i++) {
        const struct train_config config = config_of(cut[i], 1);
        struct fsdpck_error err = { 0 };
        struct data *d;
        assert_int_equal(data_open(&config, NVOCAB, NULL, &d, &err), FSDPCK_ERR_DAMAGED);
    }
}

static void test_weights(void **state)
{
    (void)state;
    char lines[400 * 20 + 1] = "";
    for (int i = 0; i < 400; i++)
        strcat(lines, TEXT);
    const struct train_data_file files[] = { { write_text("one.jsonl", CHAT CHAT), 3 }, { write_text("many.jsonl", lines), 0.25 } };
    const struct train_config config = config_of(files, 2);
    struct data *d = open_data(&config), *again = open_data(&config);
    assert_true(d->ndocs > 6 + 60 && d->ndocs < 6 + 140);
    for (size_t i = 0; i < 6; i++)
        assert_ptr_equal(d->docs[i].ids, d->docs[0].ids + (i < 3 ? 0 : d->docs[0].ntok));
    assert_int_equal(data_fingerprint(d), data_fingerprint(again));
    data_close(d);
    data_close(again);
}

/* The one file in output_dir/cache. */
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

    /* Every byte is under a hash: whatever is flipped, it is made anew. A cache that was cut off too. */
    const char *path = cache_file(&config);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (long at = 0; at < st.st_size; at += 41) {
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

    /* Other data, other settings: another file. */
    struct train_config other = config;
    other.data.loss_on = "all";
    notes[0] = '\0';
    data_close(open_data(&other));
    assert_non_null(strstr(notes, "kept in"));
}

/* Lines of many lengths, from short ones to such that go over several parts. */
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

/* Whatever the parts are, they are the file; each begins with the first line behind its multiple, packed or not, taken or passed over. */
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

static pid_t start_builder(const struct train_config *config, unsigned nthreads)
{
    pid_t pid = fork();
    if (pid == 0) {
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

/* Ends, and leaves nothing in cache/ but one file. */
static void only_one_file(const struct train_config *config)
{
    char command[PATH + 100], count[20] = "";
    snprintf(command, sizeof command, "ls %s/cache | wc -l", config->output_dir);
    FILE *f = popen(command, "re");
    assert_non_null(fgets(count, sizeof count, f));
    pclose(f);
    assert_int_equal(atoi(count), 1);
}

/* The bytes of the cache are the same from any number of threads and processes, some of which are killed, or all. */
static void test_built_together(void **state)
{
    (void)state;
    const struct train_data_file files[] = { { write_lines("1.jsonl", 800000), 1 }, { write_lines("2.jsonl", 300000), 1 } };
    const struct train_config config = config_of(files, 2);
    unsigned seed = 1;
    int status;
    assert_int_equal(waitpid(start_builder(&config, 1), &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
    char path[PATH + 200];
    snprintf(path, sizeof path, "%s", cache_file(&config));
    uint64_t whole = hash_of(path);
    for (int round = 0; round < 24; round++) {
        pid_t pids[4];
        int n = 1 + round % 4, nleft = 0;
        assert_int_equal(unlink(path), 0);
        for (int i = 0; i < n; i++)
            pids[i] = start_builder(&config, 1 + (unsigned)i % 2);
        for (int i = 0; i < n - (round % 3 != 0); i++) { /* each third round: all of them */
            nanosleep(&(struct timespec){ .tv_nsec = rand_r(&seed) % 30000000 }, NULL);
            kill(pids[i], SIGKILL);
        }
        for (int i = 0; i < n; i++) {
            assert_true(waitpid(pids[i], &status, 0) > 0);
            nleft += WIFEXITED(status);
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        }
        if (nleft == 0) /* the next run goes on */
            assert_int_equal(waitpid(start_builder(&config, 2), &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
        assert_int_equal(hash_of(path), whole);
        only_one_file(&config);
    }
}

/* A part that a stopped process has claimed keeps nobody waiting for ever: but that takes long. What one who is killed had made, the next does not make again. */
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
    pid_t pid = start_builder(&config, 1);
    while (before.st_size < 200000 && waitpid(pid, NULL, WNOHANG) == 0) {
        if (stat(building, &before))
            before.st_size = 0;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (stat(building, &before))
        skip(); /* it was done too soon */
    volatile int stop = 1;
    const struct fsdpck_options opt = { .stop = &stop, .nthreads = 1 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(data_open(&config, NVOCAB, &opt, &d, &err), FSDPCK_ERR_STOPPED);
    assert_int_equal(stat(building, &after), 0);
    assert_true(after.st_ino == before.st_ino && after.st_size >= before.st_size);
    data_close(open_data(&config));
    assert_int_equal(hash_of(path), whole);

    /* What is left of other data goes when nobody is at it any more. */
    char left[PATH + 400];
    snprintf(left, sizeof left, "%s/cache/tokens-0123456789abcdef.bin.lock", config.output_dir);
    assert_int_equal(close(open(left, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)), 0);
    assert_int_equal(unlink(path), 0);
    data_close(open_data(&config));
    only_one_file(&config);
}

/* Power was lost: what was being built has the right length, and holds something else. */
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
    pid_t pid = start_builder(&config, 1);
    struct stat st = { 0 };
    while (st.st_size < 100000 && waitpid(pid, NULL, WNOHANG) == 0) {
        if (stat(building, &st))
            st.st_size = 0;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    FILE *f = fopen(building, "r+be");
    if (!f)
        skip();
    assert_int_equal(fseek(f, 20000, SEEK_SET), 0);
    fputs("something else", f);
    fclose(f);
    data_close(open_data(&config));
    assert_int_equal(hash_of(path), whole);
}

/* However many processes there are, each says the first bad line. */
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

/* Too long: cut, or left out; both counted. */
static void test_too_long(void **state)
{
    (void)state;
    char line[2000] = "{\"text\":\"";
    for (int i = 0; i < 300; i++)
        strcat(line, "x y ");
    strcat(line, "\"}\n" TEXT);
    const struct train_data_file file = { write_text("l.jsonl", line), 1 };
    struct train_config config = config_of(&file, 1);
    struct train_data_facts facts;
    struct data *d = open_data(&config);
    data_tell(d, &facts);
    assert_true(facts.ndocs == 2 && facts.longest_ntok == 128);
    assert_non_null(strstr(notes, "of 2 documents 1 cut at data.seq_len (128 tokens)"));
    data_close(d);
    config.data.too_long = "drop";
    d = open_data(&config);
    data_tell(d, &facts);
    assert_true(facts.ndocs == 1 && facts.longest_ntok < 128);
    assert_non_null(strstr(notes, "of 2 documents 1 left out (longer than data.seq_len, 128 tokens: data.too_long)"));
    data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forms, setup, teardown),        cmocka_unit_test_setup_teardown(test_ends_with_eos, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_lines, setup, teardown),    cmocka_unit_test_setup_teardown(test_first_bad_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_skip, setup, teardown),         cmocka_unit_test_setup_teardown(test_packed_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weights, setup, teardown),      cmocka_unit_test_setup_teardown(test_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parts, setup, teardown),        cmocka_unit_test_setup_teardown(test_built_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_goes_on, setup, teardown),      cmocka_unit_test_setup_teardown(test_damaged_beginning, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_line_of_many, setup, teardown), cmocka_unit_test_setup_teardown(test_too_long, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
