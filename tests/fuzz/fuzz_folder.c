/* SPDX-License-Identifier: Apache-2.0 */
/* Loads files of the source tree as files in memory, beside the file that a target makes up. */
#include "fuzz_source.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "base/ioutil.h"

/* The files of each folder, read once. */
static struct loaded {
    const char *folder;
    struct memory_io files;
} all[3];

static void load(struct memory_io *files, const char *folder, const char *as);

static void load_entry(struct memory_io *files, const char *folder, const char *folder_as, const char *name)
{
    struct fsdpck_error err = { 0 };
    char *path = fsdpck_path_join(folder, name, &err), *as = fsdpck_path_join(folder_as, name, &err), *data;
    uint64_t nbytes;
    FUZZ_CHECK(path && as);
    if (fsdpck_is_directory(&fsdpck_io_posix, path)) {
        load(files, path, as);
        free(as);
    } else {
        FUZZ_CHECK(fsdpck_read_file(&fsdpck_io_posix, path, 1u << 20, &data, &nbytes, &err) == 0);
        memory_io_add(files, as, data, nbytes);
    }
    free(path);
}

/* Loads the files of a folder, and of those in it. */
static void load(struct memory_io *files, const char *folder, const char *as)
{
    struct fsdpck_error err = { 0 };
    char **names;
    size_t count;
    FUZZ_CHECK(fsdpck_list_sorted(&fsdpck_io_posix, folder, &names, &count, &err) == 0);
    for (size_t i = 0; i < count; i++)
        load_entry(files, folder, as, names[i]);
    fsdpck_list_free(names, count);
}

void fuzz_add_folder(struct memory_io *m, const char *folder)
{
    struct loaded *l = all;
    while (l->folder && strcmp(l->folder, folder) != 0)
        FUZZ_CHECK(++l < all + sizeof all / sizeof *all);
    if (!l->folder) {
        struct fsdpck_error err = { 0 };
        char *path = fsdpck_path_join(FUZZ_TOP, folder, &err);
        FUZZ_CHECK(path);
        load(&l->files, path, MEMORY_ROOT);
        free(path);
    }
    l->folder = folder;
    for (size_t i = 0; i < l->files.nfiles; i++)
        memory_io_add(m, l->files.files[i].path, l->files.files[i].data, l->files.files[i].nbytes);
}

const struct memory_file *fuzz_find_file(const struct memory_io *m, const char *path)
{
    for (size_t i = 0; i < m->nfiles; i++)
        if (strcmp(m->files[i].path, path) == 0)
            return &m->files[i];
    FUZZ_CHECK(!"the file is there");
    return NULL;
}
