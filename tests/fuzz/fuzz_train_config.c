/* SPDX-License-Identifier: Apache-2.0 */
/* CONFIG.json of the trainer, with --set. The first byte says how many of the following lines are --set arguments; the
 * rest is the file. Properties: after an error the config is empty, and the error has a text; otherwise every value
 * obeys its row of the key table, the tree that the config owns gives the same values when it is read again, and every
 * note on a key without effect names a key. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <jansson.h>

#include "config/config_keys.h"
#include "fuzz.h"

enum { MAX_SETS = 4 };

/* The value of a key as a number; a key of another type gives 0. */
static double number_of(const struct train_config *c, const struct config_key *key)
{
    const char *at = (const char *)c + key->offset;
    switch (key->type) {
    case KEY_BOOL: return *(const bool *)at;
    case KEY_CHOICE: return *(const unsigned *)at;
    case KEY_U64: return (double)*(const uint64_t *)at;
    case KEY_NUMBER: return *(const double *)at;
    default: return 0;
    }
}

static const char *string_of(const struct train_config *c, const struct config_key *key)
{
    const char *text = NULL;
    if (key->type == KEY_STRING || key->type == KEY_FILES)
        memcpy(&text, (const char *)c + key->offset, sizeof text);
    return text;
}

/* 0 stands for null, and for a key that is absent and has no default. */
static void check_value(const struct train_config *c, const struct config_key *key)
{
    char word[TRAIN_WORD_NBYTES];
    double number = number_of(c, key);
    bool may_be_0 = key->nullable || key->optional;
    if (key->type == KEY_U64 || key->type == KEY_NUMBER)
        FUZZ_CHECK((number >= key->min && number <= key->max) || (number == 0 && may_be_0));
    if (key->type == KEY_CHOICE)
        FUZZ_CHECK(*train_config_word(key->name, (unsigned)number, word));
    FUZZ_CHECK(!key->required || string_of(c, key));
}

static void check_files(const struct train_data_file *files, size_t n, const char *first)
{
    FUZZ_CHECK(n == 0 ? !first : first == files[0].path);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(files[i].path && *files[i].path && files[i].weight > 0 && files[i].weight <= 1000);
}

static void check_lora(const struct train_lora_config *lora)
{
    for (size_t i = 0; i < lora->ntarget_names; i++)
        FUZZ_CHECK(*lora->target_names[i]);
    for (size_t i = 0; i < lora->nmodules_to_save; i++)
        FUZZ_CHECK(*lora->modules_to_save[i]);
    for (size_t i = 0; i < lora->nrank_pattern; i++)
        FUZZ_CHECK(lora->rank_pattern[i].regex && lora->rank_pattern[i].value >= 1);
    for (size_t i = 0; i < lora->nalpha_pattern; i++)
        FUZZ_CHECK(lora->alpha_pattern[i].regex);
}

static void check_policy(const struct train_config *c)
{
    for (size_t i = 0; i < c->fsdp.npolicy; i++) {
        const struct train_policy *p = &c->fsdp.policy[i];
        bool given = false;
        for (int k = 0; k < TRAIN_POLICY_KEYS; k++)
            given |= p->given[k];
        FUZZ_CHECK(given && (p->regex ? *p->regex != 0 : p->nnames > 0));
    }
}

/* Reads the tree again: a config that names its keys in any order has one meaning. */
static void check_again(const struct train_config *c)
{
    struct fsdpck_error err = { 0 };
    struct train_config again;
    FUZZ_CHECK(train_config_take("again", json_deep_copy(c->root), &again, &err) == 0);
    for (size_t i = 0; i < config_nkeys; i++) {
        const char *a = string_of(c, &config_keys[i]), *b = string_of(&again, &config_keys[i]);
        FUZZ_CHECK(number_of(c, &config_keys[i]) == number_of(&again, &config_keys[i]));
        FUZZ_CHECK(!a == !b && (!a || strcmp(a, b) == 0));
    }
    FUZZ_CHECK(again.lora.enabled == c->lora.enabled && again.data.nfiles == c->data.nfiles &&
               again.lora.ntarget_names == c->lora.ntarget_names && again.fsdp.npolicy == c->fsdp.npolicy);
    train_config_free(&again);
}

static void check_note(void *ctx, const char *line)
{
    (void)ctx;
    FUZZ_CHECK(strncmp(line, "key '", 5) == 0 && strstr(line, "' has no effect: "));
}

static void check_config(const struct train_config *c)
{
    for (size_t i = 0; i < config_nkeys; i++)
        check_value(c, &config_keys[i]);
    check_files(c->data.files, c->data.nfiles, c->data.train);
    check_files(c->data.eval_files, c->data.neval_files, c->data.eval);
    check_lora(&c->lora);
    check_policy(c);
    check_again(c);
    for (uint32_t nranks = 1; nranks < 3; nranks++)
        train_config_idle(c, &(struct train_job_size){ nranks, nranks > 1, nranks > 2, nranks > 3 }, check_note, NULL);
}

/* Takes the lines at the start of text as --set arguments. Returns the rest. */
static char *split_sets(char *text, size_t wanted, const char *sets[MAX_SETS], size_t *nsets)
{
    for (*nsets = 0; *nsets < wanted; ++*nsets) {
        char *end = strchr(text, '\n');
        if (!end)
            break;
        *end = '\0';
        sets[*nsets] = text;
        text = end + 1;
    }
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static int fd = -1;
    static char path[40];
    if (fd < 0) {
        fd = memfd_create("config", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    static const struct train_config empty;
    const char *sets[MAX_SETS];
    struct fsdpck_error err = { 0 };
    struct train_config c;
    struct fuzz_bytes bytes = { data, nbytes };
    size_t wanted = fuzz_below(&bytes, MAX_SETS + 1), nsets;
    char *text = fuzz_text(bytes.at, bytes.nbytes), *file = split_sets(text, wanted, sets, &nsets);
    const size_t file_nbytes = bytes.nbytes - (size_t)(file - text);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, file, file_nbytes, 0) == (ssize_t)file_nbytes);
    int rc = train_config_read(path, sets, nsets, &c, &err);
    FUZZ_CHECK(rc == err.code && (rc == 0 || *err.message));
    if (rc == 0)
        check_config(&c);
    else
        FUZZ_CHECK(memcmp(&c, &empty, sizeof c) == 0);
    train_config_free(&c);
    free(text);
    return 0;
}
