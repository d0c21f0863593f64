/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizes text on one thread: tokenize TOKENIZER.json TEXT [IDS]. Prints seconds, bytes and tokens of the best of
 * three passes as one JSON object. Writes the ids as 32-bit numbers to IDS, for comparison. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <train/tokenizer.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *read_file(const char *path, size_t *nbytes)
{
    FILE *f = fopen(path, "rbe");
    if (!f || fseek(f, 0, SEEK_END))
        exit(1);
    *nbytes = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*nbytes + 1);
    if (!text || fread(text, 1, *nbytes, f) != *nbytes)
        exit(1);
    fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    struct fsdpck_error err = { 0 };
    struct tokenizer *t;
    struct token_list list = { 0 };
    double best = 1e30;
    size_t nbytes;
    char line[2048];
    if (argc < 3)
        return 2;
    int rc = tokenizer_open(argv[1], &t, &err);
    char *text = read_file(argv[2], &nbytes);
    for (int pass = 0; pass < 3 && !rc; pass++) {
        struct encoder *e;
        rc = encoder_new(t, &e, &err); /* each pass begins with an empty cache */
        double start = now();
        list.count = 0;
        if (!rc)
            rc = tokenizer_encode(e, text, nbytes, 0, &list, &err);
        best = now() - start < best ? now() - start : best;
        encoder_free(e);
    }
    if (rc) {
        fprintf(stderr, "%s\n", fsdpck_error_format(&err, line, sizeof line));
        return 1;
    }
    printf("{\"seconds\":%.6f,\"bytes\":%zu,\"tokens\":%zu}\n", best, nbytes, list.count);
    FILE *f = argc > 3 ? fopen(argv[3], "wbe") : NULL;
    if (argc > 3 && (!f || fwrite(list.ids, sizeof *list.ids, list.count, f) != list.count || fclose(f)))
        return 1;
    token_list_free(&list);
    tokenizer_close(t);
    free(text);
    return 0;
}
