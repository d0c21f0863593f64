/* SPDX-License-Identifier: Apache-2.0 */
/* Removes quantization_config from the text of a config.json, or sets it; every other byte is unchanged. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/suffix.h"
#include "hf/config.h"

struct dropper {
    struct fsdpck_json j;
    struct fsdpck_text out;
    size_t kept; /* bytes of the document that are written or dropped */
};

/* Drops the member that begins behind `begin`, where the last one (or the brace) ended, with one comma. */
static void drop_member(struct dropper *d, size_t begin, bool first)
{
    fsdpck_json_skip(&d->j);
    size_t end = d->j.at, next = end + strspn(d->j.text + end, " \t\r\n");
    if (d->j.failed)
        return;
    if (first && d->j.text[next] == ',')
        end = next + 1;
    fsdpck_text_add(&d->out, d->j.text + d->kept, begin - d->kept);
    d->kept = end;
}

static void drop_in(struct dropper *d, int depth)
{
    const char *key;
    bool first = true; /* no member before this one is kept */
    for (size_t at = d->j.at; fsdpck_json_next_key(&d->j, &key); at = d->j.at) {
        if (strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0) {
            drop_member(d, at > d->kept ? at : d->kept, first);
            continue;
        }
        if (depth == 0 && ends_with(key, "_config") && fsdpck_json_peek(&d->j) == FSDPCK_JSON_OBJECT) {
            fsdpck_json_object(&d->j);
            drop_in(d, 1);
        } else {
            fsdpck_json_skip(&d->j);
        }
        first = false;
    }
}

int fsdpck_config_drop_quantized(const char *file, const char *text, size_t nbytes, char **out, uint64_t *out_nbytes,
                                 struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct dropper d = { .kept = 0 };
    fsdpck_json_begin(&d.j, file, 0, text, nbytes, err ? err : (err = &own));
    fsdpck_json_object(&d.j);
    drop_in(&d, 0);
    fsdpck_json_end(&d.j);
    int rc = d.j.failed ? err->code : 0;
    if (!rc) {
        fsdpck_text_add(&d.out, text + d.kept, nbytes - d.kept);
        rc = fsdpck_text_check(&d.out, err);
    }
    fsdpck_json_free(&d.j);
    if (rc) {
        fsdpck_text_free(&d.out);
        return rc;
    }
    *out = d.out.data;
    *out_nbytes = d.out.nbytes;
    return 0;
}

int fsdpck_config_set_quantized(const char *file, const char *text, size_t nbytes, const char *json, char **out,
                                uint64_t *out_nbytes, struct fsdpck_error *err)
{
    struct fsdpck_text t = { 0 };
    char *plain;
    uint64_t n;
    int rc = fsdpck_config_drop_quantized(file, text, nbytes, &plain, &n, err);
    if (rc)
        return rc;
    size_t brace = n, end; /* of the document; of the last value before it */
    while (plain[--brace] != '}')
        ;
    for (end = brace; strchr(" \t\r\n", plain[end - 1]); end--)
        ;
    const bool lines = memchr(plain + end, '\n', brace - end) != NULL;
    fsdpck_text_add(&t, plain, end);
    fsdpck_text_printf(&t, "%s%s\"quantization_config\": ", plain[end - 1] == '{' ? "" : ",", lines ? "\n  " : " ");
    fsdpck_text_add(&t, json, strlen(json));
    fsdpck_text_add(&t, plain + end, n - end);
    free(plain);
    rc = fsdpck_text_check(&t, err);
    if (rc) {
        fsdpck_text_free(&t);
        return rc;
    }
    *out = t.data;
    *out_nbytes = t.nbytes;
    return 0;
}
