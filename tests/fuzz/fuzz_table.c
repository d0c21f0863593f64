/* SPDX-License-Identifier: Apache-2.0 */
/* A shard file: the input is rank 0's whole file. The target corrects the hashes in its trailer and writes an
 * index.json with its size and hash, as otherwise no change would get past them. The files of the other ranks are
 * valid. Property besides those of fuzz_source(): an accepted table agrees with FORMAT.md section 3.2. */
#include <inttypes.h>
#include <string.h>

#include "base/json_write.h"
#include "format/index.h"
#include "fuzz.h"
#include "fuzz_source.h"

#define SHARD MEMORY_ROOT "/__0_0.distcp"
#define INDEX MEMORY_ROOT "/index.json"

/* Corrects the hash of the table in the trailer, and that of the trailer. */
static struct fsdpck_trailer fix_trailer(uint8_t *file, size_t nbytes)
{
    struct fsdpck_trailer t = { 0 };
    if (nbytes < FSDPCK_TRAILER_NBYTES)
        return t;
    uint8_t *end = file + nbytes - FSDPCK_TRAILER_NBYTES;
    memcpy(t.save_id, end + 8, sizeof t.save_id);
    t.table = fsdpck_le64(end + 24);
    t.table_nbytes = fsdpck_le64(end + 32);
    if (t.table <= nbytes && t.table_nbytes <= nbytes - t.table)
        fsdpck_hash(file + t.table, t.table_nbytes, &t.table_hash);
    fsdpck_trailer_write(&t, end);
    return t;
}

/* Writes the valid index, with rank 0's file replaced. */
static void write_index(struct fsdpck_text *t, const char *sound, size_t sound_nbytes,
                        const struct fsdpck_trailer *trailer, size_t nbytes)
{
    const char *files = strstr(sound, "\"files\":"), *first = strchr(files, '{'), *after = strchr(first, '}');
    struct fsdpck_hash128 hash;
    fsdpck_text_add(t, sound, (size_t)(first - sound));
    fsdpck_text_printf(
        t, "{\"path\":\"__0_0.distcp\",\"rank\":0,\"bytes\":%zu,\"table\":[%" PRIu64 ",%" PRIu64 "],\"hash\":", nbytes,
        trailer->table, trailer->table_nbytes);
    fsdpck_text_hex(t, trailer->table_hash.bytes, sizeof trailer->table_hash.bytes);
    fsdpck_text_add(t, after, (size_t)(sound + sound_nbytes - FSDPCK_INDEX_TAIL_NBYTES - after));
    fsdpck_hash(t->data, t->nbytes, &hash);
    fsdpck_text_printf(t, "\"hash\":");
    fsdpck_text_hex(t, hash.bytes, sizeof hash.bytes);
    fsdpck_text_printf(t, "}\n");
}

static void check_entries(const struct fsdpck_table *t, uint64_t file_nbytes)
{
    uint64_t dims = 0, hashes = 0;
    for (uint64_t i = 0; i < t->nentries; i++) {
        const struct fsdpck_table_entry *e = &t->entries[i];
        FUZZ_CHECK(e->payload <= file_nbytes && e->nbytes <= file_nbytes - e->payload);
        FUZZ_CHECK(e->dims == dims && e->first_hash == hashes);
        dims += 2u * e->ndim;
        hashes += fsdpck_nslots(e->codec, e->decoded);
        uint64_t count, first = fsdpck_table_find(t, (enum fsdpck_chunk_kind)e->kind, e->ordinal, &count);
        FUZZ_CHECK(first <= i && i - first < count && first + count <= t->nentries);
    }
    FUZZ_CHECK(dims == t->ndims && hashes == t->nhashes);
}

static void check_table(struct memory_io *m, size_t nbytes)
{
    struct fsdpck_trailer trailer;
    struct fsdpck_table t;
    struct fsdpck_error err = { 0 };
    int fd = m->io.open(m, SHARD, FSDPCK_OPEN_READ, 0);
    int r = fsdpck_trailer_read(&m->io, fd, SHARD, nbytes, &trailer, &err);
    if (r == 0 && (r = fsdpck_table_read(&m->io, fd, SHARD, &trailer, &t, &err)) == 0) {
        check_entries(&t, nbytes);
        fsdpck_table_free(&t);
    }
    FUZZ_CHECK(r == err.code);
    m->io.close(m, fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct memory_io m;
    struct fsdpck_text index = { 0 };
    memory_io_init(&m);
    fuzz_add_folder(&m, "tests/fuzz/beside/fsdpck");
    struct memory_file sound = *fuzz_find_file(&m, INDEX);
    uint8_t *file = fuzz_copy(data, nbytes);
    struct fsdpck_trailer trailer = fix_trailer(file, nbytes);
    write_index(&index, (const char *)sound.data, sound.nbytes, &trailer, nbytes);
    memory_io_add(&m, SHARD, file, nbytes);
    memory_io_add(&m, INDEX, index.data, index.nbytes);
    check_table(&m, nbytes);
    fuzz_source(&m, MEMORY_ROOT, "fsdpck");
    fsdpck_text_free(&index);
    free(file);
    return 0;
}
