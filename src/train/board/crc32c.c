/* SPDX-License-Identifier: Apache-2.0 */
#include "board/crc32c.h"

/* Four bits at a time: records have some hundred bytes, so a larger table would not pay. */
uint32_t crc32c(const void *bytes, size_t nbytes)
{
    static const uint32_t table[16] = { 0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75 };
    const unsigned char *at = bytes;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < nbytes; i++) {
        crc = table[(crc ^ at[i]) & 15] ^ (crc >> 4);
        crc = table[(crc ^ (at[i] >> 4)) & 15] ^ (crc >> 4);
    }
    return crc ^ 0xffffffff;
}

uint32_t crc32c_masked(const void *bytes, size_t nbytes)
{
    const uint32_t crc = crc32c(bytes, nbytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}
