/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli), which event files carry. The CRC-32 of zip files is another polynomial. */
#ifndef TRAIN_CRC32C_H
#define TRAIN_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *bytes, size_t nbytes);
/* Rotated and shifted, as event files store it: a CRC over bytes that hold CRCs would be a weak one. */
uint32_t crc32c_masked(const void *bytes, size_t nbytes);

#endif
