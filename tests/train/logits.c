/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the logits of a run's first micro-batch as raw fp32, for scripts that compare them with PEFT's.
 *
 *     logits CONFIG.json OUT */
#include <stdio.h>
#include <stdlib.h>

#include <train/train.h>

static int write_raw(const char *path, const float *values, size_t nelem)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    size_t n = fwrite(values, sizeof *values, nelem, f);
    return fclose(f) || n != nelem ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct fsdpck_error err = { 0 };
    struct train_config config;
    struct train_session *session = NULL;
    float *logits = NULL;
    int64_t ntok = 0, nvocab = 0;
    char line[2048];
    if (argc != 3)
        return fprintf(stderr, "usage: logits CONFIG.json OUT\n"), 2;
    int rc = train_config_read(argv[1], NULL, 0, &config, &err);
    if (!rc)
        rc = train_session_open(&config, &(struct train_options){ 0 }, &session, &err);
    if (!rc)
        rc = train_session_logits(session, 0, 0, &logits, &ntok, &nvocab, &err);
    if (rc)
        fprintf(stderr, "%s\n", fsdpck_error_format(&err, line, sizeof line));
    else if (write_raw(argv[2], logits, (size_t)(ntok * nvocab)))
        rc = fprintf(stderr, "%s: could not be written\n", argv[2]);
    free(logits);
    train_session_close(session);
    train_config_free(&config);
    return rc != 0;
}
