/* SPDX-License-Identifier: Apache-2.0 */
/* Loads files of the source tree as files in memory, beside the file that a target makes up. */
#include "fuzz_source.h"

#include <string.h>

#include "fuzz.h"
#include "base/ioutil.h"

/* Files of the folder, read once; a process uses one folder. */
static struct memory_io loaded;

static void load_file(const char *folder, const char *name)
{
    struct fsdpck_error err = { 0 };
    char *path = fsdpck_path_join(folder, name, &err), *as = fsdpck_path_join(MEMORY_ROOT, name, &err), *data;
    uint64_t nbytes;
    FUZZ_CHECK(path && as && fsdpck_read_file(&fsdpck_io_posix, path, 1u << 20, &data, &nbytes, &err) == 0);
    memory_io_add(&loaded, as, data, nbytes);
    free(path);
}

static void load(const char *folder)
{
    struct fsdpck_error err = { 0 };
    char *path = fsdpck_path_join(FUZZ_TOP, folder, &err), **names;
    size_t count;
    FUZZ_CHECK(path && fsdpck_list_sorted(&fsdpck_io_posix, path, &names, &count, &err) == 0);
    for (size_t i = 0; i < count; i++)
        load_file(path, names[i]);
    fsdpck_list_free(names, count);
    free(path);
}

void fuzz_add_folder(struct memory_io *m, const char *folder)
{
    if (loaded.nfiles == 0)
        load(folder);
    for (size_t i = 0; i < loaded.nfiles; i++)
        memory_io_add(m, loaded.files[i].path, loaded.files[i].data, loaded.files[i].nbytes);
}

const struct memory_file *fuzz_find_file(const struct memory_io *m, const char *path)
{
    for (size_t i = 0; i < m->nfiles; i++)
        if (strcmp(m->files[i].path, path) == 0)
            return &m->files[i];
    FUZZ_CHECK(!"the file is there");
    return NULL;
}
