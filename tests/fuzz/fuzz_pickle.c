/* SPDX-License-Identifier: Apache-2.0 */
/* The pickle reader alone. Properties: every node has a known kind, its children are nodes, and its text is valid; the
 * bytes after STOP do not matter; only allowed names are accepted. */
#include <string.h>

#include "fuzz.h"
#include "torch/pickle/pickle.h"
#include "base/utf8.h"

static const char *const allowed[] = {
    "torch._utils _rebuild_tensor_v2", "collections OrderedDict", "torch Size", "torch FloatStorage", "pathlib *", NULL
};

static void check_text(const struct fsdpck_pickle *p, fsdpck_node n)
{
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    size_t nbytes;
    const char *text = fsdpck_pickle_text(p, n, &nbytes);
    if (!text)
        return;
    FUZZ_CHECK(text[nbytes] == '\0');
    FUZZ_CHECK(type != FSDPCK_PICKLE_STRING || fsdpck_utf8_valid(text, nbytes));
    if (type == FSDPCK_PICKLE_GLOBAL && strncmp(text, "pathlib ", 8) != 0) {
        bool known = false;
        for (size_t i = 0; allowed[i]; i++)
            known = known || strcmp(text, allowed[i]) == 0;
        FUZZ_CHECK(known);
    }
}

static void check_dict(const struct fsdpck_pickle *p, fsdpck_node n)
{
    FUZZ_CHECK(fsdpck_pickle_count(p, n) % 2 == 0);
    for (size_t i = 0; i < fsdpck_pickle_count(p, n) && i < 16; i += 2) {
        fsdpck_node key = fsdpck_pickle_child(p, n, i);
        if (fsdpck_pickle_type(p, key) == FSDPCK_PICKLE_STRING)
            FUZZ_CHECK(fsdpck_pickle_get(p, n, fsdpck_pickle_text(p, key, NULL)) != FSDPCK_NO_NODE);
    }
}

/* Values are shared, so a small pickle is a huge tree: *left bounds the walk. */
static void walk(const struct fsdpck_pickle *p, fsdpck_node n, unsigned *left)
{
    int64_t number;
    double real;
    if (*left == 0)
        return;
    --*left;
    FUZZ_CHECK(n != FSDPCK_NO_NODE && fsdpck_pickle_type(p, n) <= FSDPCK_PICKLE_PERSISTENT);
    check_text(p, n);
    fsdpck_pickle_int(p, n, &number);
    fsdpck_pickle_float(p, n, &real);
    if (fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_DICT)
        check_dict(p, n);
    size_t count = fsdpck_pickle_count(p, n);
    for (size_t i = 0; i < count && *left; i++)
        walk(p, fsdpck_pickle_child(p, n, i), left);
    FUZZ_CHECK(fsdpck_pickle_child(p, n, count) == FSDPCK_NO_NODE);
    fsdpck_node state = fsdpck_pickle_state(p, n);
    if (state != FSDPCK_NO_NODE)
        walk(p, state, left);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_pickle *p = NULL, *again = NULL;
    struct fsdpck_error err = { 0 };
    unsigned left = 5000;
    int r = fsdpck_pickle_parse("x", 0, data, nbytes, allowed, &p, &err);
    FUZZ_CHECK(r == err.code && (r == 0) == (p != NULL));
    if (r != 0)
        return 0;
    size_t used = fsdpck_pickle_used(p);
    FUZZ_CHECK(used <= nbytes && data[used - 1] == '.');
    walk(p, fsdpck_pickle_root(p), &left);
    uint8_t *exact = fuzz_copy(data, used);
    r = fsdpck_pickle_parse("x", 0, exact, used, allowed, &again, &err);
    /* The input's length caps memo numbers; a FRAME may reach beyond STOP. */
    FUZZ_CHECK(r == 0 ? fsdpck_pickle_used(again) == used : r == FSDPCK_ERR_LIMIT || memchr(data, 0x95, used));
    free(exact);
    fsdpck_pickle_free(again);
    fsdpck_pickle_free(p);
    return 0;
}
