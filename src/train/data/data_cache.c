/* The token cache: one file in output_dir, made once and mapped by every rank. Written under another name and renamed when it is whole, so that one who is
 * killed leaves nothing that looks like a cache; checked by its hash when it is mapped. */
#include "data/data_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <train/chat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/data_file.h"

#define MAGIC "fsdptok1"

struct header {
    char magic[8];
    uint64_t key, nskipped, nfiles, ndocs, ntok, body_hash, header_hash;
};

/* Behind the header: file_ends, documents, ids, labels; sizes in bytes. False: they do not fit in 2^62. */
static bool body_sizes(const struct header *h, uint64_t out[4])
{
    if (h->nfiles > 1 << 20 || h->ndocs > UINT32_MAX || h->ntok > (uint64_t)1 << 56)
        return false;
    out[0] = h->nfiles * sizeof(size_t);
    out[1] = h->ndocs * sizeof(struct document);
    out[2] = out[3] = h->ntok * sizeof(int32_t);
    return true;
}

static uint64_t header_hash(const struct header *h)
{
    return XXH3_64bits(h, offsetof(struct header, header_hash));
}

int data_cache_key(const struct data_reader *reader, uint64_t *key, struct fsdpck_error *err)
{
    const struct train_config *config = reader->config;
    uint64_t parts[] = { reader->chat ? chat_fingerprint(reader->chat) : 0, XXH3_64bits(config->data.loss_on, strlen(config->data.loss_on)),
                         XXH3_64bits(config->data.on_bad_line, strlen(config->data.on_bad_line)), (uint64_t)reader->nvocab, config->data.nfiles };
    int rc = 0;
    *key = XXH3_64bits_withSeed(parts, sizeof parts, sizeof(size_t));
    for (size_t i = 0; i < config->data.nfiles && !rc; i++)
        rc = data_file_hash(config->data.files[i].path, key, err);
    return rc;
}

static int make_folder(const char *path, struct fsdpck_error *err)
{
    return mkdir(path, 0777) && errno != EEXIST ? fsdpck_error_sys(err, errno, path, "mkdir") : 0;
}

int data_cache_path(const struct train_config *config, uint64_t key, char *path, size_t path_nbytes, struct fsdpck_error *err)
{
    char folder[4096];
    int n = snprintf(folder, sizeof folder, "%s/cache", config->output_dir);
    int m = snprintf(path, path_nbytes, "%s/tokens-%016llx.bin", folder, (unsigned long long)key);
    if (n < 0 || (size_t)n >= sizeof folder || m < 0 || (size_t)m + 32 >= path_nbytes)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, config->output_dir, "the path is too long");
    int rc = 0;
    for (char *slash = folder + 1; !rc && (slash = strchr(slash, '/')); slash++) { /* the folders above it too */
        *slash = '\0';
        rc = make_folder(folder, err);
        *slash = '/';
    }
    return rc ? rc : make_folder(folder, err);
}

/* What a run relies on, whoever wrote the file. */
static bool is_sound(const struct header *h, const size_t *file_ends, const struct document *docs, const int32_t *ids, const int32_t *labels, int64_t nvocab)
{
    uint64_t at = 0, files = 0;
    for (uint64_t i = 0; i < h->ndocs; i++) {
        if (docs[i].first != at || docs[i].ntok == 0 || docs[i].ntok > h->ntok - at || docs[i].nsupervised >= docs[i].ntok)
            return false;
        at += docs[i].ntok;
    }
    for (uint64_t i = 0; i < h->ntok; i++) {
        if (ids[i] < 0 || ids[i] >= nvocab || labels[i] < -1 || labels[i] >= nvocab)
            return false;
    }
    for (uint64_t i = 0; i < h->nfiles; i++) {
        if (file_ends[i] < files || file_ends[i] > h->ndocs)
            return false;
        files = file_ends[i];
    }
    return at == h->ntok && files == h->ndocs && h->ndocs > 0;
}

static bool take(struct data *d, const char *map, size_t nbytes, uint64_t key, int64_t nvocab)
{
    struct header h;
    uint64_t sizes[4];
    if (nbytes < sizeof h)
        return false;
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, MAGIC, 8) != 0 || h.header_hash != header_hash(&h) || h.key != key || !body_sizes(&h, sizes) ||
        nbytes != sizeof h + sizes[0] + sizes[1] + sizes[2] + sizes[3] || XXH3_64bits(map + sizeof h, nbytes - sizeof h) != h.body_hash)
        return false;
    const char *ends = map + sizeof h, *docs = ends + sizes[0], *ids = docs + sizes[1], *labels = ids + sizes[2];
    if (!is_sound(&h, (const void *)ends, (const void *)docs, (const void *)ids, (const void *)labels, nvocab))
        return false;
    d->file_ends = malloc(sizes[0]);
    d->docs = malloc(sizes[1]);
    if (!d->file_ends || !d->docs) {
        free(d->file_ends);
        free(d->docs);
        d->file_ends = NULL;
        d->docs = NULL;
        return false;
    }
    memcpy(d->file_ends, ends, sizes[0]);
    memcpy(d->docs, docs, sizes[1]);
    d->ids = (int32_t *)ids;
    d->labels = (int32_t *)labels;
    d->nfiles = h.nfiles;
    d->ndocs = h.ndocs;
    d->ntok = h.ntok;
    d->nskipped = h.nskipped;
    return true;
}

int data_cache_map(struct data *d, const char *path, uint64_t key, int64_t nvocab, bool *found, struct fsdpck_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *found = false;
    if (fd < 0)
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, path, "open");
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0) {
        close(fd);
        return 0;
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return fsdpck_error_sys(err, errno, path, "mmap");
    *found = take(d, map, (size_t)st.st_size, key, nvocab);
    if (*found) {
        d->map = map;
        d->map_nbytes = (size_t)st.st_size;
    } else {
        munmap(map, (size_t)st.st_size);
    }
    return 0;
}

int data_cache_lock(const char *path, int *fd, struct fsdpck_error *err)
{
    char lock[4200];
    snprintf(lock, sizeof lock, "%s.lock", path);
    *fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0)
        return fsdpck_error_sys(err, errno, lock, "open");
    while (flock(*fd, LOCK_EX) && errno == EINTR)
        ;
    return 0; /* a file system without locks: then each makes it, and the last rename stays */
}

static int write_body(FILE *f, const struct data *d, const uint64_t sizes[4], struct header *h)
{
    const void *const parts[4] = { d->file_ends, d->docs, d->ids, d->labels };
    XXH3_state_t *state = XXH3_createState();
    bool ok = state && XXH3_64bits_reset(state) == XXH_OK && fwrite(h, sizeof *h, 1, f) == 1;
    for (int i = 0; ok && i < 4; i++) {
        XXH3_64bits_update(state, parts[i], sizes[i]);
        ok = fwrite(parts[i], 1, sizes[i], f) == sizes[i];
    }
    h->body_hash = ok ? XXH3_64bits_digest(state) : 0;
    h->header_hash = header_hash(h);
    XXH3_freeState(state);
    return ok && fseek(f, 0, SEEK_SET) == 0 && fwrite(h, sizeof *h, 1, f) == 1 && fflush(f) == 0 && fchmod(fileno(f), 0644) == 0 && fsync(fileno(f)) == 0 ? 0 : -1;
}

int data_cache_write(const struct data *d, const char *path, uint64_t key, struct fsdpck_error *err)
{
    char temporary[4200];
    uint64_t sizes[4];
    struct header h = { .magic = MAGIC, .key = key, .nskipped = d->nskipped, .nfiles = d->nfiles, .ndocs = d->ndocs, .ntok = d->ntok };
    snprintf(temporary, sizeof temporary, "%s.tmp-XXXXXX", path); /* hosts that share the folder may make it at the same time */
    int fd = body_sizes(&h, sizes) ? mkostemp(temporary, O_CLOEXEC) : -1;
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!f) {
        int why = errno ? errno : EFBIG;
        if (fd >= 0)
            close(fd);
        return fsdpck_error_sys(err, why, temporary, "open");
    }
    int rc = write_body(f, d, sizes, &h) ? fsdpck_error_sys(err, errno ? errno : EIO, temporary, "write") : 0;
    if (fclose(f) && !rc)
        rc = fsdpck_error_sys(err, errno, temporary, "close");
    if (!rc && rename(temporary, path))
        rc = fsdpck_error_sys(err, errno, path, "rename");
    if (rc)
        unlink(temporary);
    return rc;
}
