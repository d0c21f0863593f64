/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a save. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "save_steps.h"

#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "save_case.h"

int save_begin(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind, const char *uuid_text,
               bool force, struct fsdpck_commit **c, struct fsdpck_error *err)
{
    uint8_t uuid[16];
    memset(err, 0, sizeof *err);
    assert_true(fsdpck_uuid_parse(uuid_text, uuid));
    return fsdpck_commit_begin(io, out, kind, kind == FSDPCK_COMMIT_FILE ? NULL : "index.json", uuid, force, c, err);
}

int save_directory(const struct fsdpck_io *io, const char *out, bool force, bool *in_place, struct fsdpck_error *err)
{
    struct fsdpck_commit *c;
    int rc = save_begin(io, out, FSDPCK_COMMIT_CHECKPOINT, SAVE_UUID, force, &c, err);
    if (rc != 0) {
        assert_null(c);
        return rc;
    }
    if (in_place != NULL)
        *in_place = fsdpck_commit_in_place(c);
    assert_int_equal(fsdpck_write_file(io, fsdpck_commit_record(c), SAVE_NEW, strlen(SAVE_NEW), err), 0);
    return fsdpck_commit_finish(c, err);
}
