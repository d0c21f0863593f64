/* SPDX-License-Identifier: Apache-2.0 */
/* The chat template of a model. */
#ifndef CKPT_DOCTOR_CHAT_H
#define CKPT_DOCTOR_CHAT_H

#include "doctor/checks.h"

/* Returns the chat template, malloc'ed; NULL: there is none, or several under names. */
char *fsdpck_doctor_template(struct doctor *d);

#endif
