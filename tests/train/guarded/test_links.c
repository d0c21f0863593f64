/* SPDX-License-Identifier: Apache-2.0 */
/* The guarded links end a program whose operations between devices could deadlock NCCL, and accept one whose cannot.
 * The trainer's runs on them prove nothing otherwise. Ranks are threads of a child process. */
#include <kernels/memory.h>
#include <kernels/module.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NBYTES = 1 << 16, SECONDS = 1800, /* anything slower counts as hanging */ EXIT_UNREADY = 3 };

/* A letter per operation: g(ather), G: a larger one, x: an exchange, s: a gather on another stream, l: another link is
 * opened, b: one is begun inside another. */
struct ranks {
    const char *program[2];
    unsigned char id[KERN_LINK_ID_BYTES];
};

struct rank {
    const struct ranks *all;
    uint32_t rank;
};

static const struct kern_module *module;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for oneDNN; ranks are normally processes */

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

static void must(int rc)
{
    if (rc != KERN_OK)
        _exit(EXIT_UNREADY);
}

static void do_one(char letter, const struct rank *r, struct kern_link *link, struct kern_stream *const streams[2],
                   char *data)
{
    const struct kern_links *links = module->links;
    struct kern_link *second;
    char message[KERN_MESSAGE_BYTES];
    if (letter == 'l')
        must(links->open(r->all->id, r->rank, 2, 0, never, NULL, &second, message));
    if (letter == 'b')
        links->begin(link);
    links->begin(link);
    if (letter == 'x') {
        links->send(link, streams[0], data, NBYTES / 4, !r->rank);
        links->receive(link, streams[0], data + NBYTES / 2, NBYTES / 4, !r->rank);
    } else {
        links->all_gather(link, streams[letter == 's'], data + NBYTES / 2, data, letter == 'G' ? NBYTES / 4 : 64);
    }
    links->end(link, streams[letter == 's']);
}

static void make_streams(struct kern_stream *streams[2])
{
    char message[KERN_MESSAGE_BYTES];
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2; i++)
        must(module->device->stream_new(0, NULL, &streams[i], message));
    pthread_mutex_unlock(&lock);
}

static void free_streams(struct kern_stream *streams[2])
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2; i++)
        module->device->stream_free(streams[i]);
    pthread_mutex_unlock(&lock);
}

static void *run_rank(void *arg)
{
    const struct rank *r = arg;
    struct kern_link *link;
    struct kern_stream *streams[2];
    struct kern_buffer buffer;
    char message[KERN_MESSAGE_BYTES];
    make_streams(streams);
    must(module->device->memory->alloc((struct kern_location){ .kind = KERN_MEMORY_DEVICE }, NBYTES, &buffer, message));
    must(module->links->open(r->all->id, r->rank, 2, 0, never, NULL, &link, message));
    for (const char *letter = r->all->program[r->rank]; *letter; letter++)
        do_one(*letter, r, link, streams, buffer.data);
    module->links->close(link);
    module->device->memory->free(&buffer);
    free_streams(streams);
    return NULL;
}

static _Noreturn void run_child(const char *first, const char *second)
{
    struct ranks all = { .program = { first, second } };
    struct rank ranks[2] = { { &all, 0 }, { &all, 1 } };
    pthread_t other;
    char message[KERN_MESSAGE_BYTES];
    alarm(SECONDS);
    must(module->links->make_id(all.id, message));
    must(pthread_create(&other, NULL, run_rank, &ranks[1]));
    run_rank(&ranks[0]);
    pthread_join(other, NULL);
    exit(0);
}

/* words: the expected last message; NULL: no error. */
static void expect(const char *first, const char *second, const char *words)
{
    char said[4096] = "";
    size_t n = 0;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        signal(SIGABRT, SIG_DFL);
        run_child(first, second);
    }
    close(ends[1]);
    for (ssize_t got; n + 1 < sizeof said && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    said[n] = 0;
    if (!words && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("%s and %s: status %x, %s", first, second, status, said);
    if (words && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, words)))
        fail_msg("%s and %s: status %x and '%s' wanted: %s", first, second, status, words, said);
}

static void test_same_order(void **state)
{
    (void)state;
    expect("gxGxxgG", "gxGxxgG", NULL);
}

static void test_other_order(void **state)
{
    (void)state;
    expect("gxGx", "gGxx", "different orders");
    expect("xg", "gx", "different orders");
    expect("gG", "Gg", "different orders");
}

static void test_at_once(void **state)
{
    (void)state;
    expect("gs", "gs", "two streams");
    expect("gl", "gl", "two links");
    expect("gb", "gb", "two threads");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_order), cmocka_unit_test(test_other_order),
                                        cmocka_unit_test(test_at_once) };
    char message[KERN_MESSAGE_BYTES];
    if (argc != 2 || kern_module_open(argv[1], &module, message) != KERN_OK) {
        fprintf(stderr, "a module with links is needed: %s\n", argc == 2 ? message : "no argument");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
