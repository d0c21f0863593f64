/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong, in words a user can act on. Caller-owned, fixed size, works without memory. */
#ifndef FSDPCK_ERROR_H
#define FSDPCK_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FSDPCK_API __attribute__((visibility("default")))
#define FSDPCK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FSDPCK_API
#define FSDPCK_PRINTF(fmt, args)
#endif

/* Every function that can fail returns 0 or one of these. */
enum fsdpck_code {
    FSDPCK_OK = 0,
    FSDPCK_ERR_USAGE = -1,       /* an argument or option that makes no sense */
    FSDPCK_ERR_EXISTS = -2,      /* the output exists and may not be replaced */
    FSDPCK_ERR_FORMAT = -3,      /* malformed input */
    FSDPCK_ERR_UNSUPPORTED = -4, /* well formed, but not something this version reads or writes */
    FSDPCK_ERR_MISSING = -5,     /* incomplete input: a file, tensor or chunk that is not there */
    FSDPCK_ERR_DAMAGED = -6,     /* a hash or CRC does not match the bytes */
    FSDPCK_ERR_LIMIT = -7,       /* a cap on untrusted input was passed */
    FSDPCK_ERR_IO = -8,          /* the system refused a file operation */
    FSDPCK_ERR_NOMEM = -9,       /* allocation failed */
    FSDPCK_ERR_BUSY = -10,       /* another writer is at work on the same output */
    FSDPCK_ERR_STOPPED = -11,    /* the caller asked to stop (options.stop) */
    FSDPCK_ERR_PEER = -12,       /* another rank failed, or is lost; its own error says why */
};

/* Zero-initialise before use. The first failure wins: setting a filled error changes nothing. */
struct fsdpck_error {
    int code;        /* enum fsdpck_code; 0 = no error yet */
    int sys_errno;   /* errno of the failing system call, or 0 */
    bool has_offset; /* offset is meaningful */
    uint64_t offset; /* byte offset in file */
    char file[512];  /* path as the user knows it, or "" */
    char tensor[256];
    char message[768]; /* what was found, what was wanted */
    char hint[256];    /* what to do about it, or "" */
};

/* All of these return the code that now stands in err (or `code` where err is NULL), so that callers can `return` them.
 * file may be NULL. Safe with err == NULL. */
FSDPCK_API int fsdpck_error_set(struct fsdpck_error *err, int code, const char *file, const char *fmt, ...) FSDPCK_PRINTF(4, 5);
FSDPCK_API int fsdpck_error_at(struct fsdpck_error *err, int code, const char *file, uint64_t offset, const char *fmt, ...) FSDPCK_PRINTF(5, 6);
/* A failed system call: sys_errno > 0; code becomes FSDPCK_ERR_IO (FSDPCK_ERR_NOMEM for ENOMEM, FSDPCK_ERR_MISSING for ENOENT). */
FSDPCK_API int fsdpck_error_sys(struct fsdpck_error *err, int sys_errno, const char *file, const char *what);
FSDPCK_API int fsdpck_error_nomem(struct fsdpck_error *err, size_t nbytes);
/* Add to an error that stands: no-ops where it already has one. */
FSDPCK_API void fsdpck_error_tensor(struct fsdpck_error *err, const char *tensor);
FSDPCK_API void fsdpck_error_hint(struct fsdpck_error *err, const char *fmt, ...) FSDPCK_PRINTF(2, 3);

/* "FILE[@OFFSET]: [tensor 'T': ]message", what is not printable escaped, always NUL-terminated; the hint is not in it. Returns buf. */
FSDPCK_API char *fsdpck_error_format(const struct fsdpck_error *err, char *buf, size_t nbytes);
/* Bytes of the character at s if a terminal may show it as it is; 0 for control characters (C0, DEL, C1), characters that change the direction of text, and
 * invalid UTF-8: one byte of these is shown as \\xNN. Text from files, configurations and arguments must go through it on its way to a terminal. */
FSDPCK_API size_t fsdpck_printable(const char *s);
/* How far a typed name is from a known one, for "the nearest is …": letters put in, left out, replaced, or swapped with the next; 1 where it is the known one's
 * beginning. What is longer than 64 bytes behind their common beginning counts as 64. */
FSDPCK_API unsigned fsdpck_name_distance(const char *typed, const char *known);
/* The process exit code that belongs to a code: 0, 2 (usage, exists), 3 (the input is refused), 4 (the system failed us). */
FSDPCK_API int fsdpck_error_exit_code(int code);

#ifdef __cplusplus
}
#endif
#endif
