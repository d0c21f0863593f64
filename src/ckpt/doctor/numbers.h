/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of numbers in messages. */
#ifndef CKPT_DOCTOR_NUMBERS_H
#define CKPT_DOCTOR_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "3, 5-7": numbers from `first` on, `count` of them, whose entry of `there` is false; ", …" ends a list that
 * has no room for all. Returns how many. */
uint64_t fsdpck_doctor_list_missing(const bool *there, uint64_t first, uint64_t count, char *out, size_t nbytes);

#endif
