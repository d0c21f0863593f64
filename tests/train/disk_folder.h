/* SPDX-License-Identifier: Apache-2.0 */
/* A folder on a disk for the tests of one program: setup and teardown of its cmocka group. */
#ifndef TESTS_DISK_FOLDER_H
#define TESTS_DISK_FOLDER_H

#include "tree.h"

#include <stdlib.h>
#include <unistd.h>

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = tree_new_on_disk();
    return 0;
}

/* Fails if a file was left. */
static int remove_folder(void **state)
{
    (void)state;
    const int rc = rmdir(folder);
    free(folder);
    return rc;
}

#endif
