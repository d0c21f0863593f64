/* SPDX-License-Identifier: Apache-2.0 */
/* A small file system in memory behind the I/O table. Files are read-only, except those for which a test reserved
 * space. Directories are the prefixes of names. Every operation checks bounds, so a reader that trusts a file too much
 * always gets an error. Not thread-safe. */
#ifndef TESTS_MEMORY_IO_H
#define TESTS_MEMORY_IO_H

#include <fsdpck/io.h>

#define MEMORY_MAX_FILES 32
#define MEMORY_ROOT      "/m" /* where tests put their directory */

struct memory_file {
    const char *path;
    const uint8_t *data;
    uint64_t nbytes;
    uint8_t *room; /* the file may be created and written, up to room_nbytes; NULL: read-only */
    uint64_t room_nbytes;
    bool exists;
};

struct memory_io {
    struct fsdpck_io io; /* pass &m->io to the library */
    struct memory_file files[MEMORY_MAX_FILES];
    size_t nfiles;
    unsigned nopen; /* open descriptors */
};

void memory_io_init(struct memory_io *m);
/* Adds a file. Path and data are borrowed. An existing path gets the new data. */
void memory_io_add(struct memory_io *m, const char *path, const void *data, uint64_t nbytes);
/* Adds a file that does not exist yet, but may be created with up to nbytes bytes. */
void memory_io_add_room(struct memory_io *m, const char *path, void *room, uint64_t nbytes);

#endif
