/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the server if libmicrohttpd or SQLite was missing at build time. */
#include "ui/server.h"

int server_run(const struct ui_options *opt, struct fsdpck_error *err)
{
    (void)opt;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, "fsdptrain ui", "this fsdptrain was built without it");
    fsdpck_error_hint(err, "install libmicrohttpd and SQLite (libmicrohttpd-dev, libsqlite3-dev) and build again");
    return err->code;
}
