/* SPDX-License-Identifier: Apache-2.0 */
/* The file of rates: JSON, {"version", "machine", "cores", "busy", "rates": {"product.bf16": 4e11, …}}. */
#include "price/rates.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Another way to measure, or another set of rates, is another version. */
enum { VERSION = 3, MOST_NBYTES = 1 << 16, MOST_CORES = 1 << 16, NAME = 64 };

static const char *const typed_names[RATES_NTYPED] = {
    [RATES_PRODUCT] = "product",
    [RATES_PRODUCT_THIN] = "product_thin",
    [RATES_GRADIENT] = "gradient",
    [RATES_GRADIENT_THIN] = "gradient_thin",
    [RATES_ATTENTION] = "attention",
    [RATES_ATTENTION_ROWS] = "attention_rows",
    [RATES_ATTENTION_GRAD] = "attention_backward",
    [RATES_ATTENTION_GRAD_ROWS] = "attention_backward_rows",
    [RATES_NORM] = "norm",
    [RATES_NORM_GRAD] = "norm_backward",
    [RATES_ROPE] = "rope",
    [RATES_SWIGLU] = "swiglu",
    [RATES_SWIGLU_GRAD] = "swiglu_backward",
    [RATES_LOSS] = "loss",
    [RATES_ROWS] = "rows",
    [RATES_ELEMENTS] = "elements",
};
static const char *const plain_names[RATES_NPLAIN] = {
    [RATES_ADAMW] = "adamw",     [RATES_SQUARES] = "squares", [RATES_MEMORY] = "memory", [RATES_LINK] = "link",
    [RATES_NETWORK] = "network", [RATES_CALLS] = "calls",     [RATES_HOPS] = "hops",     [RATES_DISK] = "disk",
};
static const char *const dtype_names[] = { [KERN_F32] = "fp32", [KERN_BF16] = "bf16" };

enum { NALL = 2 * RATES_NTYPED + RATES_NPLAIN };

/* The place of rate i of all, and its name. */
static double *place(struct rates *r, int i, char name[NAME])
{
    if (i >= 2 * RATES_NTYPED) {
        snprintf(name, NAME, "%s", plain_names[i - 2 * RATES_NTYPED]);
        return &r->plain[i - 2 * RATES_NTYPED];
    }
    snprintf(name, NAME, "%s.%s", typed_names[i % RATES_NTYPED], dtype_names[i / RATES_NTYPED]);
    return &r->typed[i / RATES_NTYPED][i % RATES_NTYPED];
}

static int damaged(struct fsdpck_error *err, const char *path, const char *what)
{
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "is no file of rates: %s", what);
}

static int take_rate(const char *path, const json_t *from, const char *name, double *out, struct fsdpck_error *err)
{
    const json_t *value = json_object_get(from, name);
    const double rate = json_number_value(value);
    if (!value)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "there is no rate '%s'", name);
    if (!(rate >= 1e-3 && rate <= 1e21)) /* false for NaN too */
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "rate '%s': a number from 0.001 to 1e21 is wanted", name);
    *out = rate;
    return 0;
}

static int take_rates(const char *path, const json_t *from, struct rates *out, struct fsdpck_error *err)
{
    char name[NAME];
    int rc = json_object_size(from) == NALL ? 0 : damaged(err, path, "its object \"rates\" lacks some, or has others");
    for (int i = 0; i < NALL && !rc; i++) {
        double *at = place(out, i, name);
        rc = take_rate(path, from, name, at, err);
    }
    return rc;
}

static int take_all(const char *path, const json_t *root, struct rates *out, struct fsdpck_error *err)
{
    const char *machine = json_string_value(json_object_get(root, "machine"));
    const json_int_t version = json_integer_value(json_object_get(root, "version")),
                     cores = json_integer_value(json_object_get(root, "cores"));
    if (version != VERSION)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "rates of version %lld; this program has version %d",
                                (long long)version, VERSION);
    if (!machine || strlen(machine) >= RATES_MACHINE)
        return damaged(err, path, "it names no machine");
    if (!json_is_integer(json_object_get(root, "cores")) || cores < 0 || cores > MOST_CORES)
        return damaged(err, path, "\"cores\" is no number of processors");
    out->busy = json_number_value(json_object_get(root, "busy"));
    if (!(out->busy >= 0))
        return damaged(err, path, "\"busy\" is less than 0");
    snprintf(out->machine, sizeof out->machine, "%s", machine);
    out->cores = (unsigned)cores;
    return take_rates(path, json_object_get(root, "rates"), out, err);
}

/* Reads a regular file only: a pipe would block. */
static int read_text(const char *path, char text[MOST_NBYTES], size_t *nbytes, struct fsdpck_error *err)
{
    struct stat st;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *nbytes = 0;
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = fsdpck_error_sys(err, errno, path, "open");
    else if (!S_ISREG(st.st_mode) || st.st_size >= MOST_NBYTES)
        rc = damaged(err, path, "it is no file, or too long");
    for (ssize_t n = 1; !rc && n > 0 && *nbytes<MOST_NBYTES; *nbytes += n> 0 ? (size_t)n : 0) {
        n = read(fd, text + *nbytes, MOST_NBYTES - *nbytes);
        if (n < 0)
            rc = fsdpck_error_sys(err, errno, path, "read");
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int rates_read(const char *path, struct rates *out, struct fsdpck_error *err)
{
    char text[MOST_NBYTES];
    size_t nbytes;
    struct rates rates = { 0 };
    json_error_t why;
    int rc = read_text(path, text, &nbytes, err);
    if (rc)
        return rc;
    json_t *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &why);
    rc = root ? take_all(path, root, &rates, err) : damaged(err, path, "it is no JSON");
    json_decref(root);
    if (!rc)
        *out = rates;
    return rc;
}

/* Rounded: the rest is noise. */
static double three_digits(double x)
{
    char text[32];
    double rounded = x;
    snprintf(text, sizeof text, "%.3g", x);
    sscanf(text, "%lf", &rounded);
    return rounded;
}

static json_t *make(const struct rates *rates)
{
    struct rates copy = *rates;
    char name[NAME];
    json_t *list = json_object();
    json_t *root = json_pack("{s:i, s:s, s:i, s:f, s:o}", "version", VERSION, "machine", rates->machine, "cores",
                             (int)rates->cores, "busy", three_digits(rates->busy), "rates", list);
    bool ok = root != NULL;
    for (int i = 0; i < NALL && ok; i++) {
        const double *at = place(&copy, i, name);
        ok = json_object_set_new(list, name, json_real(three_digits(*at))) == 0;
    }
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

int rates_write(const char *path, const struct rates *rates, struct fsdpck_error *err)
{
    char temporary[4096];
    json_t *root = make(rates);
    int fd = -1, rc = 0,
        n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()); /* two programs may measure */
    if (!root)
        return fsdpck_error_nomem(err, MOST_NBYTES);
    if (n < 0 || n >= (int)sizeof temporary)
        rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "the name is too long");
    if (!rc && (fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)) < 0)
        rc = fsdpck_error_sys(err, errno, temporary, "open");
    if (!rc && (json_dumpfd(root, fd, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) || fsync(fd) != 0))
        rc = fsdpck_error_sys(err, errno ? errno : EIO, temporary, "write");
    if (fd >= 0 && close(fd) != 0 && !rc)
        rc = fsdpck_error_sys(err, errno, temporary, "close");
    if (!rc && rename(temporary, path) != 0)
        rc = fsdpck_error_sys(err, errno, path, "rename");
    if (rc && fd >= 0)
        unlink(temporary);
    json_decref(root);
    return rc;
}
