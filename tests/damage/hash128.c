/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes for the Python script that forges checkpoints: for each line of hex digits on stdin, prints the XXH3-128 of
 * those bytes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json_write.h"

int main(void)
{
    char *line = NULL, digits[33] = { 0 };
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        struct fsdpck_hash128 hash;
        size_t nbytes = (size_t)n / 2; /* drops the newline */
        if (!fsdpck_hex_parse(line, (uint8_t *)line,
                              nbytes)) /* in place: byte i is written after digits 2i and 2i + 1 were read */
            return 1;
        fsdpck_hash(line, nbytes, &hash);
        fsdpck_hex_format(hash.bytes, sizeof hash.bytes, digits);
        puts(digits);
        fflush(stdout);
    }
    free(line);
    return 0;
}
