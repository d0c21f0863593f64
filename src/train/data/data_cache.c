/* SPDX-License-Identifier: Apache-2.0 */
/* The token cache as a file that several processes write. Locks on bytes of a second file decide which process makes a
 * part; the system releases them when a process ends. The same file records the progress. Sections are appended in
 * order, and every process would write the same bytes at the same offset. So a late process does no harm, nor does one
 * without locks (some file systems have none). */
#include "data/data_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <train/chat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/cache_folder.h"
#include "data/data_columns.h"
#include "data/data_hash.h"

/* Offsets of the locked bytes in the lock file. The progress is in its first bytes. */
enum { BYTE_TURN = 1000, BYTE_PROGRESS, BYTE_ALIVE, BYTE_PARTS = 2000 };
enum { PATIENCE_MS = 30000, PATH = 4300 };

struct progress {
    uint64_t nparts, nbytes, hash; /* sections appended; length of the file; hash of the two */
};

struct data_cache {
    const struct data_cache_id *id;
    char building[PATH], lock_path[PATH];
    int fd, lock;
    struct progress progress; /* never decreases */
};

static uint64_t hash_word(const char *key, unsigned choice)
{
    char word[TRAIN_WORD_NBYTES];
    train_config_word(key, choice, word);
    return XXH3_64bits(word, strlen(word));
}

int data_cache_key(const struct data_reader *reader, uint64_t *key, struct fsdpck_error *err)
{
    const struct train_config *config = reader->config;
    uint64_t parts[] = { reader->chat ? chat_fingerprint(reader->chat) : 0,
                         hash_word("data.loss_on", config->data.loss_on),
                         hash_word("data.on_bad_line", config->data.on_bad_line),
                         (uint64_t)reader->nvocab,
                         config->data.nfiles,
                         data_columns_hash(config->data.columns) };
    int rc = 0;
    *key = XXH3_64bits_withSeed(parts, sizeof parts, sizeof(size_t));
    for (size_t i = 0; i < config->data.nfiles && !rc; i++)
        rc = data_file_hash(config->data.files[i].path, key, err);
    return rc;
}

int data_cache_path(const struct train_config *config, uint64_t key, char *path, size_t path_nbytes,
                    struct fsdpck_error *err)
{
    char folder[CACHE_FOLDER];
    int rc = cache_folder_make(config->output_dir, folder, err);
    if (rc)
        return rc;
    int n = snprintf(path, path_nbytes, "%s/tokens-%016llx.bin", folder, (unsigned long long)key);
    return n < 0 || (size_t)n + 32 >= path_nbytes
               ? fsdpck_error_set(err, FSDPCK_ERR_USAGE, config->output_dir, "the path is too long")
               : 0;
}

static int map_file(const char *path, void **map, size_t *nbytes, struct fsdpck_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    *map = NULL;
    if (fd < 0)
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, path, "open");
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        *nbytes = (size_t)st.st_size;
    }
    if (*map == MAP_FAILED) {
        rc = fsdpck_error_sys(err, errno, path, "mmap");
        *map = NULL;
    }
    close(fd);
    return rc;
}

int data_cache_map(struct data *d, const struct data_cache_id *id, bool *found, struct fsdpck_error *err)
{
    void *map;
    size_t nbytes;
    int rc = map_file(id->path, &map, &nbytes, err);
    *found = false;
    if (rc || !map)
        return rc;
    rc = cache_load(d, id, map, nbytes, found, err);
    if (*found && d->ndocs) {
        madvise(map, nbytes, MADV_DONTNEED); /* the check has read all of it; a step needs little at a time */
        d->map = map;
        d->map_nbytes = nbytes;
        return 0;
    }
    *found = false;
    munmap(map, nbytes);
    data_free_documents(d);
    return rc;
}

/* Locks one byte. Returns true also if the file system has no locks. wait: gives up after PATIENCE_MS, because the
 * owner may be stopped. */
static bool lock_byte(int fd, short type, size_t byte, bool wait)
{
    for (int waited_ms = 0;; waited_ms++) {
        struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1 };
        if (fcntl(fd, F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES && errno != EINTR))
            return true;
        if (!wait || waited_ms > PATIENCE_MS)
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
}

static uint64_t progress_hash(const struct progress *p)
{
    return XXH3_64bits(p, offsetof(struct progress, hash));
}

/* Reads the progress that another process wrote, if it is intact and ahead of ours. */
static void read_progress(struct data_cache *c)
{
    struct progress p;
    lock_byte(c->lock, F_RDLCK, BYTE_PROGRESS, true);
    bool whole = pread(c->lock, &p, sizeof p, 0) == sizeof p && p.hash == progress_hash(&p);
    lock_byte(c->lock, F_UNLCK, BYTE_PROGRESS, false);
    if (whole && p.nparts >= c->progress.nparts && p.nbytes >= c->progress.nbytes)
        c->progress = p;
}

static int write_progress(struct data_cache *c, uint64_t nparts, uint64_t nbytes, struct fsdpck_error *err)
{
    struct progress p = { .nparts = nparts, .nbytes = nbytes };
    p.hash = progress_hash(&p);
    lock_byte(c->lock, F_WRLCK, BYTE_PROGRESS, true);
    bool written = pwrite(c->lock, &p, sizeof p, 0) == sizeof p;
    int why = errno;
    lock_byte(c->lock, F_UNLCK, BYTE_PROGRESS, false);
    c->progress = p;
    return written ? 0 : fsdpck_error_sys(err, why, c->lock_path, "write");
}

static int write_all(int fd, const char *path, const void *bytes, size_t nbytes, uint64_t at, struct fsdpck_error *err)
{
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = pwrite(fd, (const char *)bytes + done, nbytes - done, (off_t)(at + done));
        if (n < 0 && errno != EINTR)
            return fsdpck_error_sys(err, errno, path, "write");
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Removes files of unfinished builds of other data whose processes have ended. */
static void remove_left_overs(const struct data_cache *c)
{
    char folder[PATH], path[PATH + 300];
    snprintf(folder, sizeof folder, "%s", c->id->path);
    *strrchr(folder, '/') = '\0';
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        int fd = n > 9 && strncmp(e->d_name, "tokens-", 7) == 0 && strcmp(e->d_name + n - 9, ".bin.lock") == 0 &&
                         strcmp(path, c->lock_path) != 0
                     ? open(path, O_RDWR | O_CLOEXEC)
                     : -1;
        if (fd < 0)
            continue;
        if (lock_byte(fd, F_WRLCK, BYTE_ALIVE, false)) {
            unlink(path);
            memcpy(strrchr(path, '.'), ".part", 6);
            unlink(path);
        }
        close(fd);
    }
    if (dir)
        closedir(dir);
}

/* Opens the file under construction: continues what others have begun, or starts a new one. */
static int begin(struct data_cache *c, struct fsdpck_error *err)
{
    struct cache_header wanted, found;
    struct stat st;
    unlink(c->id->path); /* if it exists, it is damaged */
    c->fd = open(c->building, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (c->fd < 0 || fstat(c->fd, &st))
        return fsdpck_error_sys(err, errno, c->building, "open");
    cache_header_make(&wanted, c->id);
    bool good = pread(c->fd, &found, sizeof found, 0) == sizeof found && memcmp(&found, &wanted, sizeof wanted) == 0;
    if (good)
        read_progress(c);
    if (good && c->progress.nbytes >= sizeof wanted && c->progress.nbytes <= (uint64_t)st.st_size)
        return 0;
    c->progress = (struct progress){ 0 };
    int rc = ftruncate(c->fd, 0) ? fsdpck_error_sys(err, errno, c->building, "truncate")
                                 : write_all(c->fd, c->building, &wanted, sizeof wanted, 0, err);
    return rc ? rc : write_progress(c, 0, sizeof wanted, err);
}

int data_cache_open(struct data *d, const struct data_cache_id *id, struct data_cache **out, bool *found,
                    struct fsdpck_error *err)
{
    struct data_cache *c = calloc(1, sizeof *c);
    *found = false;
    *out = NULL;
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->id = id;
    c->fd = -1;
    snprintf(c->building, sizeof c->building, "%s.part", id->path);
    snprintf(c->lock_path, sizeof c->lock_path, "%s.lock", id->path);
    c->lock = open(c->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int rc = c->lock < 0 ? fsdpck_error_sys(err, errno, c->lock_path, "open") : 0;
    if (!rc) {
        lock_byte(c->lock, F_RDLCK, BYTE_ALIVE, true);
        lock_byte(c->lock, F_WRLCK, BYTE_TURN, true);
        rc = data_cache_map(d, id, found, err);
        if (!rc && !*found)
            rc = begin(c, err);
        lock_byte(c->lock, F_UNLCK, BYTE_TURN, false);
    }
    if (!rc && !*found)
        remove_left_overs(c);
    if (rc || *found)
        data_cache_close(c);
    else
        *out = c;
    return rc;
}

void data_cache_close(struct data_cache *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    if (c->lock >= 0)
        close(c->lock);
    free(c);
}

bool data_cache_claim(struct data_cache *c, size_t part)
{
    return lock_byte(c->lock, F_WRLCK, BYTE_PARTS + part, false);
}

void data_cache_release(struct data_cache *c, size_t part)
{
    lock_byte(c->lock, F_UNLCK, BYTE_PARTS + part, false);
}

size_t data_cache_nparts(struct data_cache *c)
{
    read_progress(c);
    return c->progress.nparts;
}

int data_cache_append(struct data_cache *c, const struct data_section *s, struct fsdpck_error *err)
{
    size_t nbytes = 0;
    char *bytes = cache_section_pack(s, &nbytes);
    int rc = bytes ? write_all(c->fd, c->building, bytes, nbytes, c->progress.nbytes, err)
                   : fsdpck_error_nomem(err, s->ntok * 8);
    free(bytes);
    return rc ? rc : write_progress(c, c->progress.nparts + 1, c->progress.nbytes + nbytes, err);
}

/* Does not sync. After a power loss, the hashes detect missing bytes when the file is mapped. */
int data_cache_finish(struct data_cache *c, struct fsdpck_error *err)
{
    struct cache_end e;
    lock_byte(c->lock, F_WRLCK, BYTE_TURN, true);
    cache_end_make(&e, c->progress.nparts, c->progress.nbytes);
    int rc = write_all(c->fd, c->building, &e, sizeof e, c->progress.nbytes, err);
    if (!rc && rename(c->building, c->id->path) && errno != ENOENT) /* ENOENT: another process has renamed it */
        rc = fsdpck_error_sys(err, errno, c->id->path, "rename");
    if (!rc)
        unlink(c->lock_path); /* processes that have it open see that the cache exists */
    lock_byte(c->lock, F_UNLCK, BYTE_TURN, false);
    return rc;
}
