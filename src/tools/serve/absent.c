/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the server if a library was missing at build time. */
#include "serve/server.h"

int service_run(const struct service_options *opt, const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    (void)opt;
    (void)fs;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, "fsdptrain serve", "this fsdptrain was built without it");
    fsdpck_error_hint(err, "install libmicrohttpd and protobuf-c (libmicrohttpd-dev, libprotobuf-c-dev, "
                           "protobuf-c-compiler) and build again");
    return err->code;
}
