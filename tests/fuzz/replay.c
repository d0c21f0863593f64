/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over its corpus as an ordinary test: replay CORPUS. The inputs are the files of the folder CORPUS,
 * which people named, and the members of CORPUS.tar, which fuzzers found. Either may be missing. */
#include <dirent.h>
#include <string.h>

#include "fuzz.h"

enum { TAR_BLOCK = 512, TAR_SIZE = 124, TAR_TYPE = 156 };

/* Runs the target on the next nbytes of f. They are copied to a buffer of exactly that size, so that a sanitizer
 * detects reads beyond it. */
static void run_input(FILE *f, const char *name, size_t nbytes)
{
    uint8_t *data = malloc(nbytes ? nbytes : 1);
    FUZZ_CHECK(data && fread(data, 1, nbytes, f) == nbytes);
    fprintf(stderr, "%s\n", name); /* the last line before a crash names its input */
    LLVMFuzzerTestOneInput(data, nbytes);
    free(data);
}

static void run_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    FUZZ_CHECK(f && fseek(f, 0, SEEK_END) == 0);
    long nbytes = ftell(f);
    FUZZ_CHECK(nbytes >= 0);
    rewind(f);
    run_input(f, name, (size_t)nbytes);
    fclose(f);
}

static int run_folder(const char *folder)
{
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort), nfiles = 0;
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            run_file(folder, names[i]->d_name);
            nfiles++;
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return nfiles;
}

/* A POSIX ustar archive of regular files, as run.py writes it. */
static int run_archive(const char *corpus)
{
    char path[4096], head[TAR_BLOCK];
    int nfiles = 0;
    snprintf(path, sizeof path, "%s.tar", corpus);
    FILE *f = fopen(path, "rb");
    while (f && fread(head, 1, sizeof head, f) == sizeof head && head[0] != '\0') {
        size_t nbytes = strtoul(head + TAR_SIZE, NULL, 8), rest = (TAR_BLOCK - nbytes % TAR_BLOCK) % TAR_BLOCK;
        FUZZ_CHECK(head[TAR_TYPE] == '0' && memchr(head, '\0', 100));
        run_input(f, head, nbytes);
        FUZZ_CHECK(fseek(f, (long)rest, SEEK_CUR) == 0);
        nfiles++;
    }
    if (f)
        fclose(f);
    return nfiles;
}

int main(int argc, char **argv)
{
    FUZZ_CHECK(argc == 2);
    int ninputs = run_folder(argv[1]) + run_archive(argv[1]);
    FUZZ_CHECK(ninputs > 0);
    printf("%d inputs\n", ninputs);
    return 0;
}
