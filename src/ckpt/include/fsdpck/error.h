/* SPDX-License-Identifier: Apache-2.0 */
/* Errors with messages that a user can act on. The caller owns the struct; it has a fixed size, and setting it
 * allocates nothing. */
#ifndef FSDPCK_ERROR_H
#define FSDPCK_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FSDPCK_API               __attribute__((visibility("default")))
#define FSDPCK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FSDPCK_API
#define FSDPCK_PRINTF(fmt, args)
#endif

/* Every function that can fail returns 0 or one of these. The err of a function in these headers may be NULL. */
enum fsdpck_code {
    FSDPCK_OK = 0,
    FSDPCK_ERR_USAGE = -1,       /* an invalid argument or option */
    FSDPCK_ERR_EXISTS = -2,      /* the output exists and must not be replaced */
    FSDPCK_ERR_FORMAT = -3,      /* malformed input */
    FSDPCK_ERR_UNSUPPORTED = -4, /* well formed, but this version cannot read or write it */
    FSDPCK_ERR_MISSING = -5,     /* incomplete input: a file, tensor or chunk is missing */
    FSDPCK_ERR_DAMAGED = -6,     /* a hash or CRC does not match the bytes */
    FSDPCK_ERR_LIMIT = -7,       /* untrusted input exceeds a limit */
    FSDPCK_ERR_IO = -8,          /* a file operation failed */
    FSDPCK_ERR_NOMEM = -9,       /* out of memory */
    FSDPCK_ERR_BUSY = -10,       /* another writer uses the same output */
    FSDPCK_ERR_STOPPED = -11,    /* the caller asked to stop (options.stop) */
    FSDPCK_ERR_PEER = -12,       /* another rank failed or was lost; its own error has the cause */
};

/* Zero-initialise before use. The first failure wins: setting an error that is already set changes nothing. */
struct fsdpck_error {
    int code;        /* enum fsdpck_code; 0 = no error yet */
    int sys_errno;   /* errno of the failing system call, or 0 */
    bool has_offset; /* offset is meaningful */
    uint64_t offset; /* byte offset in file */
    char file[512];  /* path as the user knows it, or "" */
    char tensor[256];
    char message[768]; /* found and expected values */
    char hint[256];    /* what to do about it, or "" */
};

/* These functions return the code that is now in err (or `code` if err is NULL), so that a caller can return their
 * result. file and err may be NULL. */
FSDPCK_API int fsdpck_error_set(struct fsdpck_error *err, int code, const char *file, const char *fmt, ...)
    FSDPCK_PRINTF(4, 5);
FSDPCK_API int fsdpck_error_at(struct fsdpck_error *err, int code, const char *file, uint64_t offset, const char *fmt,
                               ...) FSDPCK_PRINTF(5, 6);
/* Sets the error of a failed system call (sys_errno > 0): FSDPCK_ERR_NOMEM for ENOMEM, FSDPCK_ERR_MISSING for ENOENT,
 * else FSDPCK_ERR_IO. */
FSDPCK_API int fsdpck_error_sys(struct fsdpck_error *err, int sys_errno, const char *file, const char *what);
FSDPCK_API int fsdpck_error_nomem(struct fsdpck_error *err, size_t nbytes);
/* Add a tensor's name or a hint to an error that is set. An existing one stays. */
FSDPCK_API void fsdpck_error_tensor(struct fsdpck_error *err, const char *tensor);
FSDPCK_API void fsdpck_error_hint(struct fsdpck_error *err, const char *fmt, ...) FSDPCK_PRINTF(2, 3);

/* The ending of a counted noun in a message: "" for 1, otherwise "s". */
static inline const char *fsdpck_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* Writes "FILE[@OFFSET]: [tensor 'T': ]message" without the hint. Escapes unprintable characters; always terminates
 * with NUL. Returns buf. */
FSDPCK_API char *fsdpck_error_format(const struct fsdpck_error *err, char *buf, size_t nbytes);
/* Returns the length in bytes of the character at s if a terminal may show it unchanged. Returns 0 for control
 * characters (C0, DEL, C1), characters that change the direction of text, and invalid UTF-8: show one byte of these as
 * \\xNN. Text from files, configurations and arguments must be checked so before it goes to a terminal. */
FSDPCK_API size_t fsdpck_printable(const char *s);
/* Returns the edit distance between a typed name and a known one, for "the nearest is …". An edit inserts, deletes or
 * replaces a letter, or swaps two neighbours. A prefix of the known name has distance 1. Only 64 bytes after the common
 * prefix are compared. */
FSDPCK_API unsigned fsdpck_name_distance(const char *typed, const char *known);
/* Returns the exit code of a process for an error code: 0, 2 (usage, exists), 3 (the input is refused), 4 (the system
 * failed). */
FSDPCK_API int fsdpck_error_exit_code(int code);

#ifdef __cplusplus
}
#endif
#endif
