/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of its corpus, as an ordinary test: replay FOLDER. Bytes only; what they mean is
 * the target's. */
#include <dirent.h>
#include <string.h>

#include "fuzz.h"

static void run_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    FUZZ_CHECK(f && fseek(f, 0, SEEK_END) == 0);
    long nbytes = ftell(f);
    FUZZ_CHECK(nbytes >= 0);
    rewind(f);
    uint8_t *data = malloc(nbytes ? (size_t)nbytes : 1); /* exactly: reads beyond are seen */
    FUZZ_CHECK(data && fread(data, 1, (size_t)nbytes, f) == (size_t)nbytes);
    fclose(f);
    fprintf(stderr, "%s\n", name); /* the last line before a crash names its input */
    LLVMFuzzerTestOneInput(data, (size_t)nbytes);
    free(data);
}

int main(int argc, char **argv)
{
    struct dirent **names;
    int n = argc == 2 ? scandir(argv[1], &names, NULL, alphasort) : -1, nfiles = 0;
    FUZZ_CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            run_file(argv[1], names[i]->d_name);
            nfiles++;
        }
        free(names[i]);
    }
    free(names);
    FUZZ_CHECK(nfiles > 0);
    printf("%d inputs\n", nfiles);
    return 0;
}
