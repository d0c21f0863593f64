/* SPDX-License-Identifier: Apache-2.0 */
/* Formats a failure as one line of text. Uses only the caller's fixed-size struct: no memory, no locale, and no
 * knowledge of the operation that failed. */
#include <fsdpck/error.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Marks a truncated text, without leaving half of a UTF-8 character before the dots. nbytes: of buf, which is full. */
static void mark_cut(char *buf, size_t nbytes)
{
    if (nbytes < sizeof "...")
        return;
    size_t at = nbytes - sizeof "...";
    while (at > 0 && ((unsigned char)buf[at] & 0xC0) == 0x80)
        at--;
    memcpy(buf + at, "...", sizeof "...");
}

static void copy_text(char *dst, size_t nbytes, const char *src)
{
    size_t n = strnlen(src, nbytes);
    bool cut = n == nbytes;
    if (cut)
        n = nbytes - 1;
    memcpy(dst, src, n);
    dst[n] = '\0';
    if (cut)
        mark_cut(dst, nbytes);
}

FSDPCK_PRINTF(3, 0)
static void print_text(char *dst, size_t nbytes, const char *fmt, va_list ap)
{
    int n = vsnprintf(dst, nbytes, fmt, ap);
    if (n < 0)
        copy_text(dst, nbytes, fmt);
    else if ((size_t)n >= nbytes)
        mark_cut(dst, nbytes);
}

FSDPCK_PRINTF(4, 0)
static int fill(struct fsdpck_error *err, int code, const char *file, const char *fmt, va_list ap)
{
    err->code = code;
    if (file)
        copy_text(err->file, sizeof err->file, file);
    print_text(err->message, sizeof err->message, fmt, ap);
    return code;
}

int fsdpck_error_set(struct fsdpck_error *err, int code, const char *file, const char *fmt, ...)
{
    if (!err)
        return code;
    if (err->code != 0)
        return err->code;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, file, fmt, ap);
    va_end(ap);
    return code;
}

int fsdpck_error_at(struct fsdpck_error *err, int code, const char *file, uint64_t offset, const char *fmt, ...)
{
    if (!err)
        return code;
    if (err->code != 0)
        return err->code;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, file, fmt, ap);
    va_end(ap);
    err->has_offset = true;
    err->offset = offset;
    return code;
}

static int code_of_errno(int sys_errno)
{
    switch (sys_errno) {
    case ENOENT:
    case ENOTDIR: return FSDPCK_ERR_MISSING;
    case ENOMEM: return FSDPCK_ERR_NOMEM;
    default: return FSDPCK_ERR_IO;
    }
}

int fsdpck_error_sys(struct fsdpck_error *err, int sys_errno, const char *file, const char *what)
{
    int code = code_of_errno(sys_errno);
    if (!err)
        return code;
    if (err->code != 0)
        return err->code;
    const char *why = strerrordesc_np(sys_errno); /* thread-safe, unlike strerror */
    err->sys_errno = sys_errno;
    if (why)
        fsdpck_error_set(err, code, file, "%s: %s", what, why);
    else
        fsdpck_error_set(err, code, file, "%s: system error %d", what, sys_errno);
    if (sys_errno == EFBIG)
        fsdpck_error_hint(
            err, "a limit on the size of files is in the way: that of the process (ulimit -f), or of the file system");
    return code;
}

int fsdpck_error_nomem(struct fsdpck_error *err, size_t nbytes)
{
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "out of memory: %zu bytes were wanted", nbytes);
}

void fsdpck_error_tensor(struct fsdpck_error *err, const char *tensor)
{
    if (err && err->code != 0 && err->tensor[0] == '\0')
        copy_text(err->tensor, sizeof err->tensor, tensor);
}

void fsdpck_error_hint(struct fsdpck_error *err, const char *fmt, ...)
{
    if (!err || err->code == 0 || err->hint[0] != '\0')
        return;
    va_list ap;
    va_start(ap, fmt);
    print_text(err->hint, sizeof err->hint, fmt, ap);
    va_end(ap);
}

struct line {
    char *buf;
    size_t nbytes, at;
    bool full;
};

static void put(struct line *l, const char *s, size_t n)
{
    if (l->full || n >= l->nbytes - l->at) {
        l->full = true;
        return;
    }
    memcpy(l->buf + l->at, s, n);
    l->at += n;
}

/* Names come from files: a newline or an escape sequence in one must not reach a terminal. */
static void put_escaped(struct line *l, const char *s)
{
    while (*s != '\0' && !l->full) {
        char escape[8];
        size_t n = fsdpck_printable(s);
        if (n)
            put(l, s, n);
        else if (*s == '\n')
            put(l, "\\n", 2);
        else if (*s == '\t')
            put(l, "\\t", 2);
        else if (*s == '\r')
            put(l, "\\r", 2);
        else
            put(l, escape, (size_t)snprintf(escape, sizeof escape, "\\x%02x", (unsigned char)*s));
        s += n ? n : 1;
    }
}

static void put_location(struct line *l, const struct fsdpck_error *err)
{
    char number[32];
    if (err->file[0] == '\0')
        return;
    put_escaped(l, err->file);
    if (err->has_offset)
        put(l, number, (size_t)snprintf(number, sizeof number, "@%llu", (unsigned long long)err->offset));
    put(l, ": ", 2);
}

char *fsdpck_error_format(const struct fsdpck_error *err, char *buf, size_t nbytes)
{
    if (nbytes == 0)
        return buf;
    struct line l = { buf, nbytes, 0, false };
    put_location(&l, err);
    if (err->tensor[0] != '\0') {
        put(&l, "tensor '", 8);
        put_escaped(&l, err->tensor);
        put(&l, "': ", 3);
    }
    put_escaped(&l, err->message);
    buf[l.at] = '\0';
    if (l.full)
        mark_cut(buf, l.at + sizeof "..." <= nbytes ? l.at + sizeof "..." : nbytes);
    return buf;
}

int fsdpck_error_exit_code(int code)
{
    switch (code) {
    case FSDPCK_OK: return 0;
    case FSDPCK_ERR_USAGE:
    case FSDPCK_ERR_EXISTS: return 2;
    case FSDPCK_ERR_FORMAT:
    case FSDPCK_ERR_UNSUPPORTED:
    case FSDPCK_ERR_MISSING:
    case FSDPCK_ERR_DAMAGED:
    case FSDPCK_ERR_LIMIT: return 3;
    default: return 4;
    }
}
