/* SPDX-License-Identifier: Apache-2.0 */
/* Finds defects of a model or adapter folder that load without an error, or fail far from their cause. Reads only the
 * folder's list, its JSON files and the headers of its safetensors files, and weights if that is asked for. */
#ifndef FSDPCK_DOCTOR_H
#define FSDPCK_DOCTOR_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_severity {
    FSDPCK_SEVERITY_NOTE,    /* harmless, but worth knowing */
    FSDPCK_SEVERITY_WARNING, /* a consumer ignores or loses something */
    FSDPCK_SEVERITY_ERROR,   /* a common loader fails or computes wrong numbers */
};

/* One defect. Strings live only during the callback, except `check`. */
struct fsdpck_finding {
    enum fsdpck_severity severity;
    const char *check;    /* the check's name, stable: "index-files" */
    const char *file;     /* relative to the folder, or "" */
    const char *subject;  /* the tensor or key, or "" */
    const char *found;    /* a clause: "3 tensors, the first is 'x'" */
    const char *expected; /* a clause */
    const char *mend;     /* a command, or what to do */
};
typedef void (*fsdpck_finding_fn)(void *ctx, const struct fsdpck_finding *finding);

struct fsdpck_doctor_result {
    uint64_t nerrors, nwarnings, nnotes;
    uint64_t ntensors, nfiles; /* files of weights */
    uint64_t nchecked;         /* checks that could be decided */
    uint64_t nunchecked;       /* checks that had no input, or whose input is itself damaged */
    double seconds;
};

/* Returns the word for a severity: "note", "warning", "error". */
FSDPCK_API const char *fsdpck_severity_name(enum fsdpck_severity severity);

struct fsdpck_doctor_request {
    const char *base;     /* the model that the folder was made from, or that the adapter is for; NULL: the checks that
                             compare are skipped */
    const char *consumer; /* the program that an adapter is for: "vllm", "llama.cpp", "peft-0.5"; NULL: what
                             vLLM refuses is a note, no error */
    bool deep; /* read weights too: values that are no numbers, tensors that are zero, an untied head, rows of
                  new tokens, adapters without effect */
};

/* Examines the folder at path: a model, a PEFT adapter, or what the ranks of a training saved (PyTorch DCP,
 * Megatron-core, DeepSpeed). req: NULL for none of its fields. Calls report for each finding, in the calling thread.
 * Returns 0 however many findings there are, and fills *result. Returns FSDPCK_ERR_UNSUPPORTED if path is no such
 * folder; FSDPCK_ERR_NOMEM; or a file system's error. A base that is damaged itself is FSDPCK_ERR_FORMAT. An unknown
 * consumer, or one for another folder than an adapter's, is FSDPCK_ERR_USAGE, and so is a base, or deep, for a
 * training's folder. Owns nothing after the return. opt may be NULL. */
FSDPCK_API int fsdpck_doctor(const char *path, const struct fsdpck_doctor_request *req,
                             const struct fsdpck_options *opt, fsdpck_finding_fn report, void *report_ctx,
                             struct fsdpck_doctor_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
