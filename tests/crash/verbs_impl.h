/* SPDX-License-Identifier: Apache-2.0 */
/* Functions shared by the files behind verbs.h. */
#ifndef TESTS_VERBS_IMPL_H
#define TESTS_VERBS_IMPL_H

#include <fsdpck/lora.h>

#include "verbs.h"

bool verb_is_folder(const struct verb *v); /* the output is a Hugging Face folder */
bool verb_is_export(const struct verb *v);

/* nthreads 0: one thread. */
struct fsdpck_options verb_options(const struct fsdpck_io *io, unsigned nthreads);
int verb_convert(const char *from, const char *out, uint32_t nranks, bool force, bool compress,
                 const struct fsdpck_options *opt, struct fsdpck_error *err);
int verb_export(const char *from, const char *out, bool whole, bool force, const struct fsdpck_options *opt,
                struct fsdpck_error *err);
int verb_export_lora(const char *from, const char *out, const struct fsdpck_lora_choice *choice, bool force,
                     const struct fsdpck_options *opt, struct fsdpck_error *err);

/* Scaling of the new adapter and of the old one; it distinguishes their adapter_config.json. */
extern const struct fsdpck_lora_choice verb_scaling, verb_old_scaling;

char *ground_names(const char *root); /* names in root, save ids masked; malloc'ed */

#endif
