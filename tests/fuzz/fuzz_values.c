/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the command line: sizes, counts, numbers, lists, pairs. Properties: a value printed in full parses to
 * itself; the parts of a list, joined, give the list; name distances are at most 64, and 0 from a name to itself. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "select_arg.h"
#include "common/values.h"
#include "fuzz.h"

static void check_size(const char *text)
{
    uint64_t nbytes, again;
    char plain[32];
    if (!value_size(text, &nbytes))
        return;
    snprintf(plain, sizeof plain, "%" PRIu64, nbytes);
    FUZZ_CHECK(strlen(plain) > 18 || (value_size(plain, &again) && again == nbytes));
}

static void check_count(const char *text)
{
    uint32_t count, again;
    uint64_t nbytes;
    char plain[32];
    if (!value_count(text, &count))
        return;
    snprintf(plain, sizeof plain, "%" PRIu32, count);
    FUZZ_CHECK(value_count(plain, &again) && again == count);
    FUZZ_CHECK(value_size(text, &nbytes) && nbytes == count);
}

static void check_number(const char *text)
{
    double value, again;
    char plain[64];
    if (!value_number(text, &value))
        return;
    FUZZ_CHECK(isfinite(value) && value >= 0);
    snprintf(plain, sizeof plain, "%.17g", value);
    FUZZ_CHECK(value_number(plain, &again) && again == value);
}

static void check_list(const char *text)
{
    struct strings s = { 0 };
    FUZZ_CHECK(strings_add_list(&s, text) && s.count > 0);
    for (size_t i = 0; i < s.count; i++) {
        size_t n = strlen(s.at[i]);
        FUZZ_CHECK(strncmp(text, s.at[i], n) == 0 && text[n] == (i + 1 < s.count ? ',' : '\0'));
        text += n + 1;
    }
    strings_free(&s);
}

static void check_pairs(const char *text)
{
    struct select_args args = { .tree = text, .dtype = "bf16" };
    struct select_spec spec = { 0 };
    struct fsdpck_error err = { 0 };
    FUZZ_CHECK(strings_add_list(&args.rename, text) && strings_add_list(&args.alias, text));
    int r = select_arg_resolve(&args, &spec, &err);
    FUZZ_CHECK(r == err.code && (r == 0 || r == FSDPCK_ERR_USAGE));
    for (size_t i = 0; r == 0 && i < spec.select.nalias; i++)
        FUZZ_CHECK(spec.select.alias[i].key[0] && spec.select.alias[i].value[0]);
    select_spec_free(&spec);
    strings_free(&args.rename);
    strings_free(&args.alias);
}

static void check_distance(const char *text)
{
    static const char *const known[] = {
        "ranks", "max-shard-size", "", "a-word-that-is-longer-than-those-sixty-four-bytes-of-which-a-distance-is-made"
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        FUZZ_CHECK(fsdpck_name_distance(text, known[i]) <= 64);
        FUZZ_CHECK(fsdpck_name_distance(known[i], text) <= 64);
    }
    FUZZ_CHECK(fsdpck_name_distance(text, text) == 0);
    value_choice(text, "auto|always|never");
    FUZZ_CHECK(!value_choice("often", "auto|always|never"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    char *text = fuzz_text(data, nbytes);
    check_size(text);
    check_count(text);
    check_number(text);
    check_list(text);
    check_pairs(text);
    check_distance(text);
    free(text);
    return 0;
}
